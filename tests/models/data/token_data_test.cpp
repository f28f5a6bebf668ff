// Proves that the windows of `--data` are those that interfaces.md describes, for ids in both
// widths and bytes of a file and of a folder. Every pass of a shuffled order is a permutation that
// the seed decides. Data that cannot be trained on gives one clear line. The tokenising script is
// run and its failures are reported. (tests/python tests the script itself.)
#include "models/data/token_data.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>

#include "models/data/data_form.h"
#include "models/data/token_cache.h"
#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

using test_support::TemporaryDirectory;

template <typename Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

struct Windows {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> targets;
};

Windows sample_of(TokenData& data, std::uint64_t number, std::int64_t length) {
  const auto size = static_cast<std::size_t>(length);
  Windows windows{std::vector<std::int64_t>(size, -1), std::vector<std::int64_t>(size, -1)};
  EXPECT_TRUE(data.sample(number, windows.ids, windows.targets).has_value());
  return windows;
}

TokenDataOptions options_for(const std::string& path, const TemporaryDirectory& folder) {
  return {.paths = {path},
          .model_directory = folder.path() + "/model",
          .vocab_size = 300,
          .sequence_length = 3,
          .order = SampleOrder::Sequential,
          .seed = 1};
}

std::string error_of(const TokenDataOptions& options) {
  const auto opened = TokenData::open(options);
  return opened.has_value() ? "" : opened.error().to_string();
}

TEST(TokenData, WindowsDoNotOverlapAndTargetsAreOneFurther) {
  const TemporaryDirectory folder;
  const std::vector<std::uint16_t> ids{10, 11, 12, 13, 14, 15, 16, 17, 18};
  auto options = options_for(folder.write("ids.bin", bytes_of(ids)), folder);
  auto data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(data->tokens(), 9u);
  ASSERT_EQ(data->samples(), 2u);  // a third would need token 9
  EXPECT_EQ(sample_of(*data, 0, 3).ids, (std::vector<std::int64_t>{10, 11, 12}));
  EXPECT_EQ(sample_of(*data, 0, 3).targets, (std::vector<std::int64_t>{11, 12, 13}));
  EXPECT_EQ(sample_of(*data, 1, 3).ids, (std::vector<std::int64_t>{13, 14, 15}));
  EXPECT_EQ(sample_of(*data, 1, 3).targets, (std::vector<std::int64_t>{14, 15, 16}));
  EXPECT_EQ(sample_of(*data, 7, 3).ids, sample_of(*data, 1, 3).ids);  // wraps around
  options.sequence_length = 8;
  EXPECT_EQ(TokenData::open(options)->samples(), 1u);
}

TEST(TokenData, TheDigestSeesEveryTokenOfAShortStream) {
  const TemporaryDirectory folder;
  for (const std::size_t count : {9u, 20'000u, 500'000u}) {
    std::vector<std::uint16_t> ids(count, 7);
    const auto digest = [&] {
      auto data = TokenData::open(options_for(folder.write("ids.bin", bytes_of(ids)), folder));
      return data.value().digest().value();
    };
    const std::string before = digest();
    std::set<std::string> seen{before};
    for (std::size_t changed = 0; changed < 40; ++changed) {
      const std::size_t at = changed * (count - 1) / 39;
      ids[at] = 8;
      seen.insert(digest());
      ids[at] = 7;
    }
    EXPECT_EQ(seen.size(), std::min<std::size_t>(count, 40) + 1) << count;
    EXPECT_EQ(digest(), before);
  }
}

TEST(TokenData, WideVocabulariesHaveWideIds) {
  const TemporaryDirectory folder;
  auto options =
      options_for(folder.write("wide.bin", bytes_of<std::uint32_t>({70000, 1, 2, 3})), folder);
  options.vocab_size = 70001;
  auto data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(sample_of(*data, 0, 3).ids, (std::vector<std::int64_t>{70000, 1, 2}));
  options.paths.front() = folder.write("narrow.bin", bytes_of<std::uint16_t>({65535, 1, 2, 3}));
  options.vocab_size = 65536;
  data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(sample_of(*data, 0, 3).ids, (std::vector<std::int64_t>{65535, 1, 2}));
}

TEST(TokenData, TextIsBytesAcrossTheFilesOfAFolderInOrder) {
  const TemporaryDirectory folder;
  folder.write("text/b/2", "ef");
  folder.write("text/a.txt", "abc");
  folder.write("text/b/1", "");
  folder.write("text/b/10", std::string("d\xff"));
  folder.write("text/c", std::string(200'000, 'z'));  // several pieces of a read
  std::filesystem::create_symlink("nowhere", folder.path() + "/text/broken");
  auto options = options_for(folder.path() + "/text", folder);
  options.sequence_length = 6;
  auto data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(data->tokens(), 200'007u);
  EXPECT_EQ(sample_of(*data, 0, 6).ids, (std::vector<std::int64_t>{'a', 'b', 'c', 'd', 255, 'e'}));
  EXPECT_EQ(sample_of(*data, 0, 6).targets,
            (std::vector<std::int64_t>{'b', 'c', 'd', 255, 'e', 'f'}));
  EXPECT_EQ(sample_of(*data, 1, 6).ids, (std::vector<std::int64_t>{'f', 'z', 'z', 'z', 'z', 'z'}));
  options.sequence_length = 200'006;
  data = TokenData::open(options);
  EXPECT_EQ(sample_of(*data, 0, 200'006).targets.back(), 'z');
}

TEST(TokenData, ShuffledPassesArePermutationsThatTheSeedDecides) {
  const TemporaryDirectory folder;
  std::vector<std::uint16_t> ids(101);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i);
  auto options = options_for(folder.write("ids.bin", bytes_of(ids)), folder);
  options.order = SampleOrder::Shuffled;
  options.sequence_length = 1;
  const auto pass = [&](std::uint64_t seed, std::uint64_t number) {
    options.seed = seed;
    auto data = TokenData::open(options);
    std::vector<std::int64_t> order;
    for (std::uint64_t i = 0; i < 100; ++i) {
      order.push_back(sample_of(*data, number * 100 + i, 1).ids[0]);
    }
    return order;
  };
  const auto first = pass(7, 0);
  EXPECT_EQ(std::set<std::int64_t>(first.begin(), first.end()).size(), 100u);
  EXPECT_EQ(first, pass(7, 0));
  EXPECT_NE(first, pass(7, 1));
  EXPECT_NE(first, pass(8, 0));
}

TEST(Permutation, IsABijectionForEveryCount) {
  for (const std::uint64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 100, 1023, 1025, 4097}) {
    for (std::uint64_t number = 0; number < 3; ++number) {
      std::set<std::uint64_t> places;
      for (std::uint64_t i = 0; i < count; ++i) places.insert(permuted(i, count, 11, number));
      EXPECT_EQ(places.size(), count);
      EXPECT_LT(*places.rbegin(), count);
    }
  }
  EXPECT_LT(permuted(std::uint64_t{1} << 40, (std::uint64_t{1} << 40) + 1, 1, 0),
            (std::uint64_t{1} << 40) + 1);
}

/// Each place gets each value about equally often: chi-squared over 2,000 permutations of 8.
TEST(Permutation, IsNearUniform) {
  constexpr std::size_t count = 8, rounds = 2000;
  std::array<std::array<double, count>, count> seen{};
  for (std::uint64_t number = 0; number < rounds; ++number) {
    for (std::uint64_t i = 0; i < count; ++i) seen[i][permuted(i, count, 3, number)] += 1;
  }
  double squares = 0;
  const double expected = rounds / static_cast<double>(count);
  for (const auto& row : seen) {
    for (const double times : row) squares += (times - expected) * (times - expected) / expected;
  }
  EXPECT_LT(squares, 100.0);  // 49 degrees of freedom: mean 49, standard deviation 10
}

TEST(TokenData, FaultsAreOneLineThatNamesThePath) {
  const TemporaryDirectory folder;
  const auto expect = [&](TokenDataOptions options, const std::string& message) {
    const std::string text = error_of(options);
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find(options.paths.front()), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  expect(options_for(folder.path() + "/none", folder), "no such file or folder");
  expect(options_for(folder.path() + "/none.bin", folder), "no such file or folder");
  expect(options_for(folder.write("empty.txt", ""), folder), "no text or tokens in it");
  expect(options_for(folder.write("empty.bin", ""), folder), "no text or tokens in it");
  std::filesystem::create_directory(folder.path() + "/nothing");
  expect(options_for(folder.path() + "/nothing", folder), "no text or tokens in it");
  expect(options_for(folder.write("short.txt", "abc"), folder), "got 3 tokens, allowed 4 or more");
  expect(options_for(folder.write("odd.bin", "abc"), folder),
         "got 3 bytes, allowed a multiple of 2");
  std::vector<std::uint16_t> ids(200'000, 5);
  ids[150'000] = 300;
  expect(options_for(folder.write("large.bin", bytes_of(ids)), folder),
         "token 150000: got id 300, allowed below the vocab_size 300");
  auto small = options_for(folder.write("text.txt", "abcdef"), folder);
  small.vocab_size = 255;
  expect(small, "got vocab_size 255, allowed 256 or more");
  folder.write("model/merges.txt", "");
  expect(options_for(folder.path() + "/text.txt", folder), "has merges.txt but no tokenizer.json");
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe.bin").c_str(), 0600), 0);
  expect(options_for(folder.path() + "/pipe.bin", folder), "not a regular file");
}

TEST(TokenData, SeveralPathsAreOneStreamInTheirOrder) {
  const TemporaryDirectory folder;
  auto options = options_for(folder.write("a.bin", bytes_of<std::uint16_t>({1, 2, 3})), folder);
  options.paths.push_back(folder.write("b.txt", "ab"));
  options.paths.push_back(folder.write("c.jsonl", "{\"text\": \"c\"}\n\n{\"text\": \"d\\u00e9\"}"));
  options.paths.push_back(folder.write("d.bin", bytes_of<std::uint16_t>({4, 5})));
  options.paths.push_back(options.paths.front());
  options.sequence_length = 14;
  auto data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(data->tokens(), 16u);
  EXPECT_EQ(
      sample_of(*data, 0, 14).ids,
      (std::vector<std::int64_t>{1, 2, 3, 'a', 'b', 'c', '\n', 'd', 0xc3, 0xa9, '\n', 4, 5, 1}));
  options.sequence_length = 5;  // the third sample begins within one source and ends in another
  data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ(sample_of(*data, 2, 5).ids, (std::vector<std::int64_t>{'\n', 4, 5, 1, 2}));
}

TEST(TokenData, JsonLinesAreToldByNameByLookAndByTheirField) {
  const TemporaryDirectory folder;
  const std::string lines = "{\"text\": \"abc\"}\r\n{\"text\": \"def\", \"n\": 1}\r\n";
  const auto tokens = [&](const std::string& name, const std::string& bytes,
                          std::optional<std::string> field = {}) {
    auto options = options_for(folder.write(name, bytes), folder);
    options.text_field = std::move(field);
    auto data = TokenData::open(options);
    return data.has_value() ? std::to_string(data->tokens()) : data.error().to_string();
  };
  for (const char* name : {"a.jsonl", "a.JSONL", "a.ndjson", "a.txt", "a.json", "a"}) {
    EXPECT_EQ(tokens(name, lines), "8") << name;
    EXPECT_EQ(tokens(name, "\xEF\xBB\xBF" + lines), "8") << name;
  }
  EXPECT_EQ(tokens("b.txt", "{\"text\": \"abc\"}\nand prose\n"), "26");
  EXPECT_EQ(tokens("b.txt", "{\"content\": \"abcd\"}\n"), "20");
  EXPECT_EQ(tokens("b.txt", "{\"content\": \"abcd\"}\n", "content"), "5");
  EXPECT_NE(tokens("b.jsonl", "{\"content\": \"abcd\"}\n")
                .find("b.jsonl: line 1: allowed a JSON "
                      "object with a string \"text\""),
            std::string::npos);
  EXPECT_NE(tokens("c.jsonl", lines + "{\"text\": 3}\n").find("c.jsonl: line 3: "),
            std::string::npos);
  EXPECT_NE(tokens("c.jsonl", lines + "{\"text\": \"cut").find("c.jsonl: line 3: "),
            std::string::npos);
}

TEST(TokenData, WhatIsNeitherTextNorIdsIsRefusedByName) {
  const TemporaryDirectory folder;
  const std::string rest(1000, 'x');
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    return error_of(options_for(folder.write(name, bytes + rest), folder));
  };
  const std::vector<std::pair<std::string, std::string>> forms{
      {std::string("\x1f\x8b\x08\0", 4), "got gzip"},
      {"\x28\xb5\x2f\xfd", "got zstd"},
      {"BZh9", "got bzip2"},
      {std::string("\xfd\x37zXZ\0", 6), "got xz"},
      {"PK\x03\x04", "got zip"},
      {"PAR1", "got Parquet"},
      {"\x7f\x45LF", "got an ELF program"},
      {"\x93NUMPY", "got a numpy array"},
      {"\xff\xfe", "got UTF-16"},
      {std::string(257, 'n') + "ustar", "got a tar archive"},
      {std::string(40, '\0'), "3% of its bytes are no UTF-8 text, allowed 3%"},
      {std::string(40, '\xe9'), "3% of its bytes are no UTF-8 text, allowed 3%"}};
  for (const auto& [bytes, expected] : forms) {
    EXPECT_NE(refused("data.txt", bytes).find(expected), std::string::npos)
        << refused("data.txt", bytes);
  }
  EXPECT_NE(refused("data.bin", forms[5].first).find("got Parquet"), std::string::npos);
  EXPECT_EQ(error_of(options_for(folder.write("f/a", std::string(15, '\xe9')), folder)), "");
  folder.write("f/b.gz", forms[0].first);
  EXPECT_NE(error_of(options_for(folder.path() + "/f", folder)).find("f/b.gz: got gzip"),
            std::string::npos);
  folder.write("g/a.bin", rest);
  EXPECT_NE(error_of(options_for(folder.path() + "/g", folder)).find("g/a.bin: token ids in a"),
            std::string::npos);
}

TEST(TokenData, IdsOfTheOtherWidthAreRefusedWithTheHint) {
  const TemporaryDirectory folder;
  std::vector<std::uint32_t> wide(1000, 7);
  std::vector<std::uint64_t> wider(1000, 7);
  auto options = options_for(folder.write("wide.bin", bytes_of(wide)), folder);
  for (const std::string& bytes : {bytes_of(wide), bytes_of(wider)}) {
    folder.write("wide.bin", bytes);
    EXPECT_NE(error_of(options).find("read as uint16, every second id is 0: these look like wider"),
              std::string::npos)
        << error_of(options);
  }
  wide[3] = 7 | 5 << 16;
  folder.write("wide.bin", bytes_of(wide));
  EXPECT_EQ(error_of(options), "");
  options.vocab_size = 70'000;
  folder.write("wide.bin", bytes_of(std::vector<std::uint16_t>(1000, 7)));
  EXPECT_NE(error_of(options).find("the ids look like uint16, and those of this model are read as"),
            std::string::npos)
      << error_of(options);
}

TEST(TokenData, BadTextBytesAreThoseThatNoTextHas) {
  EXPECT_EQ(bad_text_bytes("plain, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80"), 0u);
  EXPECT_EQ(bad_text_bytes("\xa9 cut at both ends \xf0\x9f"), 0u);
  EXPECT_EQ(bad_text_bytes(std::string("a\0b\xff", 4)), 2u);
  EXPECT_EQ(bad_text_bytes(" \xc0\x80 \xed\xa0\x80 \xf5\x80\x80\x80 \xe9t"), 2u + 3u + 4u + 1u);
}

/// Cached by their texts, and by all that decides how these become tokens.
TEST(TokenCache, KeysDifferWithAllThatDecidesTheTokens) {
  const TemporaryDirectory folder;
  const auto key = [&](const std::string& text, const std::string& tokenizer,
                       const std::string& parameters, DataForm form = DataForm::Text) {
    const DataFile file{.path = folder.write("text", text), .form = form, .size = text.size()};
    return TokenCache::key({.files = {file},
                            .settings = {folder.write("tokenizer", tokenizer), "/none"},
                            .parameters = parameters})
        .value();
  };
  const std::string one = key("text", "t", "300");
  EXPECT_EQ(key("text", "t", "300"), one);
  const std::set<std::string> keys{one, key("texts", "t", "300"), key("text", "u", "300"),
                                   key("text", "t", "301"),
                                   key("text", "t", "300", DataForm::JsonLines)};
  EXPECT_EQ(keys.size(), 5u);
}

TEST(TokenCache, KeysDifferWithTheBordersOfFiles) {
  const TemporaryDirectory folder;
  const auto key = [&](const std::vector<std::string>& texts) {
    TokenOrigin origin;
    for (const std::string& text : texts) {
      const std::string name = "text" + std::to_string(origin.files.size());
      origin.files.push_back({.path = folder.write(name, text), .size = text.size()});
    }
    return TokenCache::key(origin).value();
  };
  // Without each text's length in the key, this would equal the beginning of another file.
  const std::string border = std::string("\4\0\0\0\0\0\0\0text", 12) + std::string(8, '\0');
  const std::set<std::string> keys{key({"abc"}),         key({"ab", "c"}),
                                   key({"a", "bc"}),     key({"c", "ab"}),
                                   key({"ab", "c", ""}), key({"ab" + border + "c"})};
  EXPECT_EQ(keys.size(), 6u);
}

TEST(TokenCache, WhatWasUsedLongestAgoGoesFirst) {
  const TemporaryDirectory folder;
  const TokenCache cache(folder.path() + "/cache", 250);
  const std::string file = folder.write("tokens", std::string(100, 'x'));
  ASSERT_TRUE(cache.keep("a", file).has_value());
  ASSERT_TRUE(cache.keep("b", file).has_value());
  const auto hour = std::chrono::hours(1);
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(folder.path() + "/cache/a.bin", now - 2 * hour);
  std::filesystem::last_write_time(folder.path() + "/cache/b.bin", now - hour);
  ASSERT_TRUE(cache.find("a").has_value());  // used now
  ASSERT_TRUE(cache.keep("c", file).has_value());
  EXPECT_TRUE(cache.find("a").has_value());
  EXPECT_FALSE(cache.find("b").has_value());
  EXPECT_EQ(folder.read("cache/c.bin"), folder.read("tokens"));
  ASSERT_TRUE(cache.keep("d", folder.write("large", std::string(251, 'x'))).has_value());
  EXPECT_FALSE(cache.find("d").has_value());
  EXPECT_TRUE(cache.find("c").has_value());
  EXPECT_FALSE(TokenCache("").find("a").has_value());
}

TEST(TokenData, AFileCutWhileInUseIsAnErrorNotACrash) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("ids.bin", bytes_of(std::vector<std::uint16_t>(100, 7)));
  auto data = TokenData::open(options_for(path, folder));
  ASSERT_TRUE(data.has_value());
  std::filesystem::resize_file(path, 10);
  std::array<std::int64_t, 3> ids{}, targets{};
  const auto read = data->sample(20, ids, targets);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::Corrupt);
}

/// A stand-in for Python: a shell script that plays the tokenising script.
class Tokenize : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("model/tokenizer.json", "{}");
    folder_.write("text.txt", "abc");
  }
  void TearDown() override {
    ::unsetenv("ARTESIAN_PYTHON");
    ::unsetenv("TMPDIR");
  }
  TokenDataOptions play(const std::string& script) {
    const std::string path = folder_.write("python", "#!/bin/sh\n" + script);
    ::chmod(path.c_str(), 0700);
    ::setenv("ARTESIAN_PYTHON", path.c_str(), 1);
    std::filesystem::create_directories(folder_.path() + "/temporary");
    ::setenv("TMPDIR", (folder_.path() + "/temporary").c_str(), 1);
    return options_for(folder_.path() + "/text.txt", folder_);
  }
  bool temporary_is_empty() const {
    return std::filesystem::is_empty(folder_.path() + "/temporary");
  }

  TemporaryDirectory folder_;
};

TEST_F(Tokenize, TheScriptsTokensAreReadAndNoFileIsLeft) {
  const auto options = play(R"(
test "$1 $2" = "-m artesian_tokenize" || exit 3
test "$3 $5 $7 $9" = "--tokenizer --input --output --vocab-size" || exit 3
test "${10}" = 300 || exit 4
test -f "${PYTHONPATH##*:}/artesian_tokenize.py" || exit 5
echo "artesian_tokenize: 1.0 of 1.0 MB" >&2
printf '\001\000\002\000\003\000\004\000' > "$8"
)");
  auto data = TokenData::open(options);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_TRUE(temporary_is_empty());
  EXPECT_EQ(sample_of(*data, 0, 3).targets, (std::vector<std::int64_t>{2, 3, 4}));
}

TEST_F(Tokenize, TokensAreKeptFromRunToRun) {
  auto options = play("echo run >> " + folder_.path() +
                      "/runs; printf '\\001\\000\\002\\000\\003\\000\\004\\000' > \"$8\"");
  int asked = 0;
  options.before_long_work = [&]() -> Result<void> {
    ++asked;
    return {};
  };
  const auto runs = [&] {
    EXPECT_EQ(error_of(options), "");
    return folder_.read("runs").size() / 4;
  };
  EXPECT_EQ(runs(), 1u);
  EXPECT_EQ(runs(), 2u);  // nothing is kept without a folder
  options.token_cache = folder_.path() + "/cache";
  EXPECT_EQ(runs(), 3u);
  EXPECT_EQ(runs(), 3u);
  EXPECT_EQ(asked, 3);
  folder_.write("text.txt", "abd");
  EXPECT_EQ(runs(), 4u);
  folder_.write("model/tokenizer.json", "{ }");
  EXPECT_EQ(runs(), 5u);
  options.before_long_work = [] { return make_error(ErrorCode::NoSpace, "no such disk"); };
  EXPECT_EQ(runs(), 5u);
  options.token_cache = folder_.path() + "/text.txt/none";  // where no cache can be made
  EXPECT_EQ(error_of(options), "no such disk");
  options.before_long_work = {};
  EXPECT_EQ(runs(), 6u);
  EXPECT_TRUE(temporary_is_empty());
}

TEST_F(Tokenize, ItsFailureIsToldInOneLineWithAdviceThatHelps) {
  const std::string python = "ARTESIAN_PYTHON", space = "set TMPDIR to a folder with room";
  const auto expect = [&](const std::string& script, const std::string& message,
                          const std::string& advice) {
    const std::string text = error_of(play(script));
    EXPECT_NE(text.find(message), std::string::npos) << text;
    for (const std::string& any : {python, space}) {
      EXPECT_EQ(text.find(any) != std::string::npos, any == advice) << text;
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(temporary_is_empty());
  };
  expect("echo 'artesian_tokenize: error: bad tokenizer' >&2; exit 2",
         "text.txt: cannot be tokenised: bad tokenizer", "");
  expect("echo 'artesian_tokenize: error: id 9'; echo 'of a library'; exit 2", ": id 9", "");
  expect("echo \"artesian_tokenize: error: $8.partial-7: No space left on device\"; exit 1",
         "tokens.bin.partial-7: No space left on device; ", space);
  expect("echo 'No module named artesian_tokenize'; exit 1", "No module named artesian_tokenize",
         python);
  expect("exit 1", "ended without saying why", python);
  expect("kill -9 $$", "ended without saying why", python);
  auto options = play("");
  ::setenv("ARTESIAN_PYTHON", "/no/such/python", 1);
  EXPECT_NE(error_of(options).find("/no/such/python: No such file"), std::string::npos);
}

TEST_F(Tokenize, AStopEndsTheScript) {
  auto options = play("echo $$ > " + folder_.path() + "/pid.new; mv " + folder_.path() +
                      "/pid.new " + folder_.path() + "/pid; touch \"$8\"; exec sleep 600");
  options.stopped = [&] { return std::filesystem::exists(folder_.path() + "/pid"); };
  const auto opened = TokenData::open(options);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::Cancelled);
  EXPECT_TRUE(temporary_is_empty());
  EXPECT_EQ(::kill(std::stoi(folder_.read("pid")), 0), -1);  // reaped, so no longer there
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(Tokenize, AnInterruptIsNoFault) {
  const auto opened = TokenData::open(play("exit 130"));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::Cancelled);
  EXPECT_TRUE(temporary_is_empty());
}

}  // namespace
}  // namespace artesian::models
