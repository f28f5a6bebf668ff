// Proves that each hostile safetensors file is refused with its own message, that 1,000 mutated
// headers never crash the reader and are judged as by a naive second reader, and that every
// readable type is converted exactly, in any slice.
#include "models/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "base/dtype.h"
#include "tests/models/naive_safetensors.h"
#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

using test_support::TemporaryDirectory;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

/// A whole file of this header and `data_size` bytes of data.
std::string file_of(const std::string& header, std::size_t data_size) {
  return with_length(header.size(), header + std::string(data_size, '\0'));
}

const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

struct HostileCase {
  const char* name;
  std::string file;
  const char* message;
};

std::string nested(std::size_t depth) {
  return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":)" + std::string(depth, '[') +
         std::string(depth, ']') + "}}";
}

std::string tensor(const std::string& fields) {
  return "{\"a\":{" + fields + "}}";
}

std::vector<HostileCase> hostile_headers() {
  return {
      {"EmptyFile", "", "has 0 bytes, needed 8"},
      {"ShortPrefix", "1234567", "has 7 bytes, needed 8"},
      {"HeaderBeyondFile", with_length(100, "{}"), "header of 100 bytes in a file of 10"},
      {"HeaderAbove100MB", with_length(100'000'001, "{}"), "allowed 100000000"},
      {"HeaderLengthWraps", with_length(~0ull - 3, "{}"), "allowed 100000000"},
      {"NoHeader", file_of("", 0), "not JSON at byte"},
      {"NotJson", file_of("hello", 0), "not JSON at byte"},
      {"List", file_of("[]", 0), "is a list"},
      {"Unfinished", file_of("{" + good, 8), "not JSON at byte"},
      {"AfterTheObject", file_of("{" + good + "}x", 8), "not JSON at byte"},
      {"BadUtf8", file_of("{\"\xff\":1}", 0), "not UTF-8 at byte"},
      {"CutUtf8", file_of("{\"\xe6\xb0\"", 0), "not UTF-8 at byte"},
      {"LoneSurrogate", file_of(R"({"\ud800":{}})", 0), "not JSON at byte"},
      {"ByteOrderMark", file_of("\xef\xbb\xbf{" + good + "}", 8), "byte order mark"},
      {"UnknownDtype", file_of(tensor(R"("dtype":"F31","shape":[],"data_offsets":[0,0])"), 0),
       "unknown dtype \"F31\""},
      {"DtypeNumber", file_of(tensor(R"("dtype":32)"), 0), "dtype: got a number"},
      {"ShapeString", file_of(tensor(R"("shape":"2")"), 0), "shape: got a string"},
      {"ShapeNegative", file_of(tensor(R"("shape":[-2])"), 0), "shape: got a negative number"},
      {"ShapeFraction", file_of(tensor(R"("shape":[2.0])"), 0), "shape: got a fraction"},
      {"ShapeNested", file_of(tensor(R"("shape":[[2]])"), 0), "shape: got a list"},
      {"ShapeAboveUint64", file_of(tensor(R"("shape":[18446744073709551616])"), 0),
       "shape: got a fraction"},
      {"OneOffset", file_of(tensor(R"("dtype":"F32","shape":[0],"data_offsets":[0])"), 0),
       "data_offsets has 1 numbers"},
      {"ThreeOffsets", file_of(tensor(R"("dtype":"F32","shape":[0],"data_offsets":[0,0,0])"), 0),
       "data_offsets has 3 numbers"},
      {"NoDtype", file_of(tensor(R"("shape":[0],"data_offsets":[0,0])"), 0), "dtype is missing"},
      {"NoShape", file_of(tensor(R"("dtype":"F32","data_offsets":[0,0])"), 0), "shape is missing"},
      {"NoOffsets", file_of(tensor(R"("dtype":"F32","shape":[0])"), 0), "data_offsets is missing"},
      {"FieldTwice", file_of(tensor(R"("dtype":"F32","dtype":"F32")"), 0), "dtype comes twice"},
      {"NameTwice", file_of("{" + good + "," + good + "}", 8), "tensor \"a\" comes twice"},
      {"EmptyNameTwice",
       file_of(R"({"z":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
               R"("z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
               0),
       "tensor \"z\" comes twice"},
      {"TensorIsNumber", file_of(R"({"a":1})", 0), "\"a\": got a number, allowed an object"},
      {"TensorIsList", file_of(R"({"a":["F32",[2],[0,8]]})", 8), "got a list, allowed an object"},
      {"TensorIsNull", file_of(R"({"a":null})", 0), "got null, allowed an object"},
      {"MetadataNumber", file_of(R"({"__metadata__":{"x":1}})", 0), "metadata: got a number"},
      {"MetadataNested", file_of(R"({"__metadata__":{"x":{}}})", 0), "metadata: got an object"},
      {"MetadataTwice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "metadata comes"},
      {"TooDeep", file_of(nested(126), 8), "nested too deeply"},
      {"DepthTenThousand", file_of(nested(10'000), 8), "nested too deeply"},
      {"DepthMillion", file_of(std::string(1'000'000, '['), 0), "is a list"},
  };
}

std::vector<HostileCase> hostile_ranges() {
  const std::string second = R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":)";
  return {
      {"ProductOverflows",
       file_of(tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "product overflows"},
      {"BitsOverflow",
       file_of(tensor(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"), 0),
       "product overflows"},
      {"HalfBytes", file_of(tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2),
       "do not fill whole bytes"},
      {"SizeDisagrees", file_of(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
       "shape and dtype need 12 bytes"},
      {"EndsBeforeBegin", file_of(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8),
       "ends before it begins"},
      {"Overlap", file_of("{" + good + second + "[4,8]}}", 8), "overlaps the tensor before it"},
      {"SameRange",
       file_of("{" + good + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "overlaps the tensor before it"},
      {"Hole", file_of("{" + good + second + "[12,16]}}", 16), "leaves a hole after byte 8"},
      {"HoleAtStart", file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8),
       "leaves a hole after byte 0"},
      {"Truncated", file_of("{" + good + "}", 7), "file is truncated"},
      {"Trailing", file_of("{" + good + "}", 9), "1 trailing bytes"},
  };
}

std::vector<HostileCase> hostile_files() {
  std::vector<HostileCase> cases = hostile_headers();
  for (HostileCase& hostile : hostile_ranges()) cases.push_back(std::move(hostile));
  return cases;
}

TEST(SafetensorsHostile, EachFaultHasItsMessageAndNamesTheFile) {
  const TemporaryDirectory folder;
  for (const HostileCase& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const std::string path = folder.write(hostile.name, hostile.file);
    const auto opened = SafetensorsFile::open(path);
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::Corrupt);
    const std::string text = opened.error().to_string();
    EXPECT_NE(text.find(hostile.message), std::string::npos) << text;
    EXPECT_NE(text.find(path), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  const TemporaryDirectory folder;
  const std::vector<std::string> files{
      file_of("{}", 0),
      file_of("{" + good + "}      ", 8),
      file_of("  {" + good + "}\n", 8),
      file_of(R"({"__metadata__":{"format":"pt","format":"np"},)" + good + "}", 8),
      file_of(R"({"__metadata__":null,)" + good + "}", 8),
      file_of(R"({"":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8),
      file_of(R"({"z":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)" + good + "}", 8),
      file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},)" + good + "}", 9),
      file_of(tensor(R"("dtype":"F4","shape":[16],"data_offsets":[0,8],"new":{"dtype":1})"), 8),
      file_of(nested(125), 8),
  };
  for (const std::string& file : files) {
    const auto opened = SafetensorsFile::open(folder.write("file", file));
    EXPECT_TRUE(opened.has_value()) << file << ": " << opened.error().to_string();
  }
}

TEST(Safetensors, MissingFileAndFolderAreErrors) {
  const TemporaryDirectory folder;
  EXPECT_EQ(SafetensorsFile::open(folder.path() + "/none").error().code, ErrorCode::Io);
  EXPECT_EQ(SafetensorsFile::open(folder.path()).error().code, ErrorCode::Invalid);
}

/// A name with a quote, a line end or absurd length is shown as one short line.
TEST(Safetensors, NamesFromTheFileAreShownSafely) {
  EXPECT_EQ(shown_name("a\n\"b\x1b"), R"("a\n\"b\u001b")");
  EXPECT_LT(shown_name(std::string(1 << 20, 'x')).size(), 100u);
  EXPECT_EQ(shown_name("\xff"), "\"\\ufffd\"");
}

std::string mutated(std::string header, std::mt19937_64& source) {
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(source() % limit); };
  static const std::vector<std::string> snippets{
      "0",          "8",  "16",      "-1",      "1e3",     "18446744073709551615",
      "4294967296", "[",  "]",       "{",       "}",       ",",
      ":",          "\"", "\\u0000", "\"F16\"", "\"F64\"", "null",
      "true",       " ",  "\xff",    "\"a\":",  "[]",      "{}"};
  for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
    const std::size_t position = below(header.size());
    switch (below(7)) {
      case 0: header[position] = static_cast<char>(source()); break;
      case 1: header.erase(position, 1 + below(4)); break;
      case 2: header.insert(position, snippets[below(snippets.size())]); break;
      case 3: header[position] = static_cast<char>('0' + below(10)); break;
      case 4: std::swap(header[position], header[below(header.size())]); break;
      case 5: header.insert(header.find_first_of(",:[]{}", position) + 1, "\n"); break;
      case 6: {  // another name
        const std::size_t name = header.find_first_of("wbsz", position);
        if (name != std::string::npos) header[name] = static_cast<char>('a' + below(26));
        break;
      }
    }
    if (header.empty()) header = "{";
  }
  return header;
}

TEST(SafetensorsFuzz, AThousandMutatedHeadersAreJudgedAsTheNaiveReaderDoes) {
  const char* given = std::getenv("ARTESIAN_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20251121;
  std::printf("  seed %llu (ARTESIAN_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 source(seed);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},)"
      R"("s":{"dtype":"BF16","shape":[],"data_offsets":[32,34]},)"
      R"("z":{"dtype":"U8","shape":[0],"data_offsets":[34,34]}})";
  std::size_t accepted = 0;
  for (int index = 0; index < 1000; ++index) {
    const std::string candidate = mutated(header, source);
    const bool expected = naive_accepts(candidate, 34);
    const auto parsed = parse_safetensors_header(candidate, 34);
    ASSERT_EQ(parsed.has_value(), expected) << candidate << "\n"
                                            << (expected ? parsed.error().to_string() : "");
    accepted += expected ? 1 : 0;
  }
  std::printf("  %zu of 1000 accepted\n", accepted);
  EXPECT_GT(accepted, 10u);
  EXPECT_LT(accepted, 990u);
}

TEST(Safetensors, EveryTypeIsConvertedExactlyInAnySlice) {
  const TemporaryDirectory folder;
  std::mt19937_64 source(3);
  const std::size_t count = 70'001;  // more than one piece of 64 KiB in every type
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(static_cast<std::int64_t>(source())) * 1e-18f;
  for (const std::string type : {"F32", "F16", "BF16", "F64"}) {
    std::string data;
    std::vector<float> expected(count);
    const auto append = [&](auto element) {
      data.append(reinterpret_cast<const char*>(&element), sizeof element);
    };
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] = values[i];
      if (type == "F32") append(values[i]);
      if (type == "F64") append(static_cast<double>(values[i]));
      if (type == "F16")
        append(float_to_fp16(values[i])), expected[i] = fp16_to_float(float_to_fp16(values[i]));
      if (type == "BF16")
        append(float_to_bf16(values[i])), expected[i] = bf16_to_float(float_to_bf16(values[i]));
    }
    const std::string header = R"({"a":{"dtype":")" + type +
                               R"(","shape":[70001],"data_offsets":[0,)" +
                               std::to_string(data.size()) + "]}}";
    const auto opened =
        SafetensorsFile::open(folder.write(type, with_length(header.size(), header + data)));
    ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
    const SafetensorsTensor& tensor_read = *opened->find("a");
    for (const auto& [first, length] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, count}, {1, 1}, {count - 1, 1}, {count, 0}, {32'767, 2}, {5, 40'000}}) {
      std::vector<float> got(length, -1.0f);
      ASSERT_TRUE(opened->read(tensor_read, first, got).has_value());
      EXPECT_TRUE(
          std::equal(got.begin(), got.end(), expected.begin() + static_cast<std::ptrdiff_t>(first)))
          << type << " " << first << " " << length;
    }
  }
}

TEST(Safetensors, AFileCutAfterOpeningIsAnErrorThatNamesFileAndTensor) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("cut", file_of("{" + good + "}", 8));
  const auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.has_value());
  folder.write("cut", "short");
  std::array<float, 2> got{};
  const auto read = opened->read(*opened->find("a"), 0, got);
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().to_string().find("tensor \"a\""), std::string::npos);
  EXPECT_NE(read.error().to_string().find(path), std::string::npos);
}

}  // namespace
}  // namespace artesian::models
