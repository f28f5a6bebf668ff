// Proves that the settings of `aio_bench tune` are written into a config so that `artesian` reads
// exactly them, while nothing else of the text changes: in various layouts with comments, and in
// every published config. Also proves what is refused.
#include "tools/aio_bench/config_edit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/temporary_directory.h"
#include "zero3/config/config.h"
#include "zero3/config/text.h"

namespace artesian::bench {
namespace {

const Settings found{.block_size = 2097152,
                     .queue_depth = 16,
                     .threads = 2,
                     .single_submit = true,
                     .overlap_events = false};

std::string edited(const std::string& text) {
  auto result = with_settings(text, "ds.json", found, aio::EngineKind::IoUring);
  EXPECT_TRUE(result.has_value()) << text << "\n" << result.error().to_string();
  return result.has_value() ? *result : "";
}

void expect_read(const std::string& text) {
  auto config = zero3::parse_config(text, "ds.json", {});
  if (!config) {  // some say "auto", which the trainer fills
    zero3::ConfigArguments trainer;
    trainer.micro_batch_size = trainer.accumulation_steps = 1;
    trainer.lr = 1e-3;
    trainer.steps = 100;
    trainer.hidden_size = 64;
    config = zero3::parse_config(text, "ds.json", trainer);
  }
  ASSERT_TRUE(config.has_value()) << text << "\n" << config.error().to_string();
  EXPECT_EQ(config->aio.block_size, found.block_size);
  EXPECT_EQ(config->aio.queue_depth, found.queue_depth);
  EXPECT_EQ(config->aio.intra_op_parallelism, found.threads);
  EXPECT_EQ(config->aio.single_submit, found.single_submit);
  EXPECT_EQ(config->aio.overlap_events, found.overlap_events);
}

std::string refused(const std::string& text) {
  auto result = with_settings(text, "ds.json", found, aio::EngineKind::IoUring);
  EXPECT_FALSE(result.has_value()) << text;
  if (result.has_value()) return "";
  EXPECT_EQ(result.error().code, ErrorCode::Invalid);
  return result.error().message;
}

TEST(ConfigEdit, PrintsASectionThatIsAConfig) {
  EXPECT_EQ(print_settings(found, aio::EngineKind::IoUring), R"({
  "aio": {
    "block_size": 2097152,
    "queue_depth": 16,
    "intra_op_parallelism": 2,
    "single_submit": true,
    "overlap_events": false
  }
}
)");
  EXPECT_TRUE(zero3::read_json(print_settings(found, aio::EngineKind::IoUring), "x").has_value());
}

/// Returns the value of `artesian.engine` after an engine has won where "auto" takes io_uring;
/// empty if it has none.
std::string engine_after(const std::string& text, aio::EngineKind winner) {
  Settings settings = found;
  settings.engine = winner;
  auto result = with_settings(text, "ds.json", settings, aio::EngineKind::IoUring);
  EXPECT_TRUE(result.has_value()) << text << "\n" << result.error().to_string();
  if (!result.has_value()) return "";
  expect_read(*result);
  auto tree = zero3::read_json(*result, "ds.json");
  EXPECT_TRUE(tree.has_value());
  const zero3::JsonValue* section = tree->find("artesian");
  const zero3::JsonValue* engine = section == nullptr ? nullptr : section->find("engine");
  return engine == nullptr ? "" : zero3::print_json(*engine);
}

TEST(ConfigEdit, WritesTheEngineWhereTheConfigWouldRunWithAnother) {
  using aio::EngineKind;
  for (const std::string text : {"{}", "{\"aio\": {\"queue_depth\": 1}, \"artesian\": {}}",
                                 "{\n  \"artesian\": {\"host_memory\": \"1GiB\"}, // ours\n}"}) {
    EXPECT_EQ(engine_after(text, EngineKind::IoUring), "");
    EXPECT_EQ(engine_after(text, EngineKind::Threads), "\"threads\"");
    EXPECT_EQ(engine_after(text, EngineKind::Libaio), "\"libaio\"");
  }
  for (const std::string now : {"auto", "io_uring"}) {
    const std::string text = "{\"artesian\": {\"engine\": \"" + now + "\"}}";
    EXPECT_EQ(engine_after(text, EngineKind::IoUring), '"' + now + '"');
    EXPECT_EQ(engine_after(text, EngineKind::Threads), "\"threads\"");
  }
  const std::string threads = "{\"artesian\": {\"engine\": \"threads\"}}";
  EXPECT_EQ(engine_after(threads, EngineKind::Threads), "\"threads\"");
  EXPECT_EQ(engine_after(threads, EngineKind::IoUring), "\"auto\"");
  EXPECT_EQ(engine_after(threads, EngineKind::Libaio), "\"libaio\"");
}

TEST(ConfigEdit, WritesThePollingThatWasMeasured) {
  const auto after = [](const std::string& text, aio::EngineKind engine, aio::Polling polling) {
    Settings settings = found;
    settings.engine = engine;
    settings.polling = polling;
    auto result = with_settings(text, "ds.json", settings, aio::EngineKind::IoUring);
    EXPECT_TRUE(result.has_value()) << text;
    if (!result.has_value()) return zero3::PollingChoice::Off;
    expect_read(*result);
    return zero3::parse_config(*result, "ds.json", {}).value().artesian.polling;
  };
  using aio::EngineKind;
  using zero3::PollingChoice;
  for (const std::string text : {"{}", "{\"artesian\": {\"polling\": \"both\"}}"}) {
    EXPECT_EQ(after(text, EngineKind::IoUring, aio::Polling::None), PollingChoice::Off);
    EXPECT_EQ(after(text, EngineKind::IoUring, aio::Polling::Submission),
              PollingChoice::Submission);
    EXPECT_EQ(after(text, EngineKind::Threads, aio::Polling::Submission), PollingChoice::Off);
  }
  Settings settings = found;
  settings.polling = aio::Polling::Completion;
  EXPECT_NE(print_settings(settings, EngineKind::IoUring).find("\"polling\": \"iopoll\""),
            std::string::npos);
}

TEST(ConfigEdit, PrintsTheEngineThatAutoWouldNotTake) {
  Settings settings = found;
  settings.engine = aio::EngineKind::Threads;
  const std::string text = print_settings(settings, aio::EngineKind::IoUring);
  EXPECT_NE(text.find("\n  },\n  \"artesian\": {\n    \"engine\": \"threads\"\n  }\n}\n"),
            std::string::npos)
      << text;
  expect_read(text);
  EXPECT_EQ(print_settings(settings, aio::EngineKind::Threads).find("artesian"), std::string::npos);
}

TEST(ConfigEdit, RefusesASectionOfOursThatIsNoObject) {
  Settings settings = found;
  settings.engine = aio::EngineKind::Threads;
  auto result = with_settings("{\"artesian\": 7}", "ds.json", settings, aio::EngineKind::IoUring);
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("artesian: got 7"), std::string::npos);
}

TEST(ConfigEdit, ChangesValuesWhereTheyStandAndAddsWhatIsMissing) {
  const std::string text = R"({
    // the "aio": {"block_size": 1} of a comment
    "train_micro_batch_size_per_gpu": 1,   # one
    "aio": { /* { */
        "queue_depth" :8 , "thread_count": "1",
        "block_size": 1e6, // "queue_depth": 9
    },
    "steps_per_print": 10,
}
)";
  EXPECT_EQ(edited(text), R"({
    // the "aio": {"block_size": 1} of a comment
    "train_micro_batch_size_per_gpu": 1,   # one
    "aio": { /* { */
        "queue_depth" :16 , "intra_op_parallelism": 2,
        "block_size": 2097152, // "queue_depth": 9
        "single_submit": true,
        "overlap_events": false,
    },
    "steps_per_print": 10,
}
)");
  expect_read(edited(text));
}

TEST(ConfigEdit, WritesTheOneFormThatDeepSpeedReads) {
  const auto keys = [](const std::string& text) {
    const auto form = in_one_form(text, "ds.json");
    EXPECT_TRUE(form.has_value()) << text;
    std::string joined;
    for (const std::string& key : form->removed) joined += key + " ";
    expect_read(edited(text));
    EXPECT_EQ(edited(edited(text)), edited(text)) << "the second time changes nothing";
    for (const char* gone : {"thread_count", "num_threads"}) {
      EXPECT_EQ(edited(text).find(gone), std::string::npos) << edited(text);
    }
    const auto tree = zero3::read_json(edited(text), "ds.json");
    const zero3::JsonValue* zero = tree->find("zero_optimization");
    EXPECT_TRUE(zero == nullptr || zero->find("aio") == nullptr) << edited(text);
    return joined;
  };
  EXPECT_EQ(keys(R"({"aio": {"block_size": 4096}})"), "");
  EXPECT_EQ(keys(R"({"aio": {"thread_count": 4}})"), "aio.thread_count ");
  EXPECT_EQ(keys(R"({"aio": {"thread_count": 4, "intra_op_parallelism": 1}})"),
            "aio.thread_count ");
  EXPECT_EQ(keys(R"({"aio": {"intra_op_parallelism": 1, "num_threads": 4,}})"), "aio.num_threads ");
  EXPECT_EQ(keys(R"({"aio": {"num_threads": 4, "thread_count": 4}})"),
            "aio.thread_count aio.num_threads ");
  EXPECT_EQ(keys(R"({"zero_optimization": {"stage": 3, "aio": {"num_threads": 9}}})"),
            "zero_optimization.aio aio.num_threads ");
  EXPECT_EQ(keys(R"({"zero_optimization": {"aio": {}, "stage": 3}, "aio": {}})"),
            "zero_optimization.aio ");
  EXPECT_EQ(keys(R"({"zero_optimization": {"aio": {}}})"), "zero_optimization.aio ");
  const std::string lifted = edited(R"({
  "zero_optimization": {
    "stage": 3, // all
    "aio": {"use_gds": false}
  }
})");
  const std::string commented = edited(R"({
  "aio": {
    "thread_count": 4, // four of them
    // what the disk can bear
    "intra_op_parallelism": 4, "num_threads": 4, /* bytes */ "block_size": 4096,
    "queue_depth": 8
  }
})");
  EXPECT_NE(commented.find(R"({
    // what the disk can bear
    "intra_op_parallelism": 2, /* bytes */ "block_size": 2097152,
    "queue_depth": 16)"),
            std::string::npos)
      << commented;
  const std::string of_two_lines = edited(R"({
  "aio": {
    "intra_op_parallelism": 4,
    "thread_count": 4, /* four
      of them */
    "num_threads": 4, /* as many */
    "queue_depth": 8
  }
})");
  EXPECT_EQ(of_two_lines.find(
                "{\n  \"aio\": {\n    \"intra_op_parallelism\": 2,\n    \"queue_depth\": 16,\n"),
            0u)
      << of_two_lines;
  expect_read(of_two_lines);
  EXPECT_NE(lifted.find("\"stage\": 3 // all\n  },"), std::string::npos) << lifted;
  EXPECT_NE(lifted.find("\"use_gds\": false"), std::string::npos) << lifted;
}

TEST(ConfigEdit, AddsASection) {
  EXPECT_EQ(
      edited("{\n\t\"zero_optimization\": {\"stage\": 1},\n\t\"fp16\": {\"enabled\": true}"
             " // half\n}\n"),
      "{\n\t\"zero_optimization\": {\"stage\": 1},\n\t\"fp16\": {\"enabled\": true}, // half\n"
      "\t\"aio\": {\n\t  \"block_size\": 2097152,\n\t  \"queue_depth\": 16,\n"
      "\t  \"intra_op_parallelism\": 2,\n\t  \"single_submit\": true,\n"
      "\t  \"overlap_events\": false\n\t}\n}\n");
  for (const std::string text :
       {"{}", "{ }", "{\n}", "{\"steps_per_print\": 1}", "{\"steps_per_print\": 1,}",
        "{\n  \"steps_per_print\": 1,\n}", "\xEF\xBB\xBF{\"steps_per_print\"\xC2\xA0: 1}",
        "# start\n{ // a\n  \"steps_per_print\": 1 // b\n  // c\n}\n// end", "{\"aio\": {}}",
        "{\"aio\": {},}", "{\n  \"aio\": {\n  }\n}", "{\"aio\": {\"queue_depth\": 1}}",
        "{\"aio\": {\"queue_depth\": 1,}}", "{\"aio\": {\"queue_depth\": 1 /* } */ }}",
        "{\"zero_optimization\": {\"stage\": 1, \"aio\": {\"num_threads\": 9}}}",
        "{\"zero_optimization\": {\"aio\": {\"single_submit\": \"false\"}, \"stage\": 1}}"}) {
    expect_read(edited(text));
    EXPECT_EQ(edited(edited(text)), edited(text)) << "the second time changes nothing";
  }
}

/// Removes from the text all that was inserted for an aio section.
std::string without_aio(const std::string& text) {
  const std::size_t begin = text.find("\"aio\"");
  const std::size_t line = text.rfind('\n', begin);
  return text.substr(0, line) + text.substr(text.find('}', begin) + 1);
}

TEST(ConfigEdit, AddsBehindTheCommentOfTheLastMember) {
  for (const std::string comment : {"// x", "# x", "/* x */", "/* x\n y */ // z", "  //,"}) {
    const std::string open = "{\n  \"a\": 1, // y\n  \"steps_per_print\": 2";
    const std::string with_comma = edited(open + ", " + comment + "\n}\n");
    EXPECT_EQ(without_aio(with_comma), open + ", " + comment + ",\n}\n");
    const std::string without = edited(open + " " + comment + "\n  // end\n}\n");
    EXPECT_EQ(without_aio(without), open + ", " + comment + "\n  // end\n}\n");
  }
  EXPECT_EQ(edited("{\"a\": 1,\n \"b\": 2 /* x */}").find("{\"a\": 1,\n \"b\": 2,\n \"aio\": {"),
            0u);
}

TEST(ConfigEdit, KeepsTheNewlinesAndTheBlanksOfTheFile) {
  const std::string windows = edited("{\r\n  \"a\": 1 // x\r\n}\r\n");
  for (std::size_t at = windows.find('\n'); at != windows.npos; at = windows.find('\n', at + 1)) {
    EXPECT_EQ(windows[at - 1], '\r') << at;
  }
  EXPECT_EQ(windows.find("{\r\n  \"a\": 1, // x\r\n  \"aio\": {\r\n    \"block_size\""), 0u)
      << windows;
  const std::string wide = "\xC2\xA0\xC2\xA0";
  const std::string pasted = edited("{\n" + wide + "\"a\": 1\n}\n");
  EXPECT_NE(pasted.find("\n" + wide + "\"aio\": {\n" + wide + "  \"block_size\""), pasted.npos);
}

TEST(ConfigEdit, EveryPublishedConfigKeepsItsOtherLines) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(ARTESIAN_SOURCE_DIR "/tests/zero3/config/configs")) {
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string after = edited(text.str());
    expect_read(after);
    // Without an aio section, taking out what was put in gives the file, byte for byte.
    if (text.str().find("\"aio\"") == std::string::npos) {
      const std::size_t begin = after.find("\"aio\"");
      const std::size_t comma = after.rfind(',', begin);
      const std::size_t end = after.find('}', begin) + 1;
      EXPECT_EQ(after.substr(0, comma) + after.substr(end), text.str()) << entry.path();
    }
    files += text.str() != after;
  }
  EXPECT_EQ(files, 11);
}

TEST(ConfigEdit, RefusesInOneLineWhatItCannotRead) {
  EXPECT_NE(refused("{\"a\": }").find("ds.json: line 1, column 7"), std::string::npos);
  EXPECT_NE(refused("[1]").find("allowed an object"), std::string::npos);
  EXPECT_NE(refused("{\"aio\": 7}").find("aio: got 7"), std::string::npos);
  EXPECT_NE(refused("{\"a\\u0069o\": {}}").find("write it by hand"), std::string::npos);
  EXPECT_NE(refused("{\"aio\": {\"queue_depth\": 1, \"queue_depth\": 2}}").find("given twice"),
            std::string::npos);
  for (const char* text : {"", "{", "nonsense", "{\"aio\": {\"queue_depth\": 1}"}) {
    EXPECT_EQ(refused(text).find('\n'), std::string::npos);
  }
}

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }
  test_support::TemporaryDirectory folder_;
  const std::string path_ = folder_.file("ds.json");
};

TEST_F(ConfigFile, IsReplacedAndKeptAsABackup) {
  const std::string text = "{\"steps_per_print\": 1}";
  write(text);
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  auto backup = apply_settings(path_, found, aio::EngineKind::IoUring);
  ASSERT_TRUE(backup.has_value()) << backup.error().to_string();
  EXPECT_EQ(*backup, path_ + ".bak");
  EXPECT_EQ(read(*backup), text);
  const std::string once = read(path_);
  expect_read(once);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  auto second = apply_settings(path_, found, aio::EngineKind::IoUring);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second, path_ + ".bak.1");
  EXPECT_EQ(read(*second), once);
  EXPECT_EQ(read(path_ + ".bak"), text);
  EXPECT_EQ(entries(), 3);
}

TEST_F(ConfigFile, KeepsItsOwner) {
  write("{}");
  if (chown(path_.c_str(), 65534, 65533) != 0) GTEST_SKIP() << "only root may give files away";
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  const auto backup = apply_settings(path_, found, aio::EngineKind::IoUring);
  ASSERT_TRUE(backup.has_value()) << backup.error().to_string();
  for (const std::string& each : {path_, *backup}) {
    struct stat status {};
    ASSERT_EQ(stat(each.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 65534u) << each;
    EXPECT_EQ(status.st_gid, 65533u) << each;
    EXPECT_EQ(status.st_mode & 07777, 0640u) << each;
  }
}

TEST_F(ConfigFile, OfAnotherOwnerOpensItselfToNoOtherGroup) {
  write("{}");
  if (chown(path_.c_str(), 65534, 65533) != 0) GTEST_SKIP() << "only root may give files away";
  ASSERT_EQ(chmod(path_.c_str(), 0664), 0);
  const int status = test_support::run_in_child([&] {
    if (!test_support::refuse_call(SYS_fchown, EPERM)) return 100;
    return apply_settings(path_, found, aio::EngineKind::IoUring).has_value() ? 0 : 1;
  });
  if (status == 100) GTEST_SKIP() << "no seccomp filters here";
  ASSERT_EQ(status, 0);
  expect_read(read(path_));
  struct stat now {};
  ASSERT_EQ(stat(path_.c_str(), &now), 0);
  EXPECT_EQ(now.st_uid, geteuid());
  EXPECT_EQ(now.st_mode & 07777, 0644u) << "the group is another one: it may what all others may";
}

TEST_F(ConfigFile, BehindALinkIsEditedAndTheLinkStays) {
  write("{}");
  std::filesystem::create_symlink("ds.json", folder_.file("link.json"));
  ASSERT_TRUE(
      apply_settings(folder_.file("link.json"), found, aio::EngineKind::IoUring).has_value());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("link.json")));
  expect_read(read(path_));
}

TEST_F(ConfigFile, WhoseNameNoOtherFileCanTakeIsWrittenOver) {
  const std::string text = "{\"steps_per_print\": 1, \"a_long_key\": \"so that it gets shorter\"}";
  for (const int refusal : {EBUSY, EPERM}) {
    write(text);
    const int status = test_support::run_in_child([&] {
      if (!test_support::refuse_call(SYS_rename, refusal)) return 100;
      return apply_settings(path_, found, aio::EngineKind::IoUring).has_value() ? 0 : 1;
    });
    if (status == 100) GTEST_SKIP() << "no seccomp filters here";
    ASSERT_EQ(status, 0) << refusal;
    EXPECT_EQ(read(path_), edited(text));
    EXPECT_EQ(read(path_ + ".bak"), text);
    EXPECT_EQ(entries(), 2);
    std::filesystem::remove(path_ + ".bak");
  }
}

TEST_F(ConfigFile, IsCheckedWithoutAChange) {
  write("{}");
  EXPECT_TRUE(check_apply_settings(path_).has_value());
  EXPECT_EQ(read(path_), "{}");
  EXPECT_EQ(entries(), 1);
  write("{\"aio\": 7}");
  EXPECT_EQ(check_apply_settings(path_).error().code, ErrorCode::Invalid);
}

TEST_F(ConfigFile, OfSettingsAloneIsTold) {
  for (const auto& polling : {aio::Polling::None, aio::Polling::Submission}) {
    Settings settings = found;
    settings.polling = polling;
    write(print_settings(settings, aio::EngineKind::Threads));
    EXPECT_TRUE(check_settings_alone(path_).has_value());
  }
  write(" \n");
  EXPECT_TRUE(check_settings_alone(path_).has_value());
  for (const std::string text : {"{\"fp16\": {}}", "{\"aio\": {\"pin\": 1}}", "{\"aio\": 1}", "x",
                                 "{\"artesian\": {\"durable\": true}}"}) {
    write(text);
    EXPECT_EQ(check_settings_alone(path_).error().code, ErrorCode::Invalid) << text;
  }
}

TEST_F(ConfigFile, ThatCannotBeReadIsLeftAsItIs) {
  write("{\"aio\": ");
  EXPECT_FALSE(apply_settings(path_, found, aio::EngineKind::IoUring).has_value());
  EXPECT_EQ(read(path_), "{\"aio\": ");
  EXPECT_EQ(entries(), 1);
  auto missing = apply_settings(folder_.file("none.json"), found, aio::EngineKind::IoUring);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().system_error, ENOENT);
}

}  // namespace
}  // namespace artesian::bench
