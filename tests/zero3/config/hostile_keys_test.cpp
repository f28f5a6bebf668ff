// Proves row 28 of the reliability table for every key of the table, under each of its names:
// misspelt, given twice, of each wrong type, not a number, infinite, overflowing, negative or out
// of range, it is refused by its path with what is allowed. The table says what a key may hold.
#include <gtest/gtest.h>

#include "tests/zero3/config/for_key.h"
#include "zero3/config/text.h"

namespace artesian::zero3 {
namespace {

/// Values of one kind each, as typed.
struct Typed {
  const char* text;
  JsonValue::Kind kind;
};

constexpr Typed kinds[] = {
    {"null", JsonValue::Kind::Null},  {"true", JsonValue::Kind::Boolean},
    {"7", JsonValue::Kind::Number},   {"\"qqqq\"", JsonValue::Kind::String},
    {"[[]]", JsonValue::Kind::Array}, {"{\"q\": 1}", JsonValue::Kind::Object}};

constexpr const char* hostile_numbers[] = {"NaN",   "Infinity", "-Infinity", "1e999", "-1e999",
                                           "1e308", "-1e308",   "-1",        "-0.5"};

/// True if the key's type accepts values of this kind at all.
bool takes(const ConfigKey& key, JsonValue::Kind kind) {
  using Kind = JsonValue::Kind;
  if (kind == Kind::Null) return key.nullable;
  switch (key.type) {
    case KeyType::Boolean: return kind == Kind::Boolean;
    case KeyType::Integer:
    case KeyType::Real:
    case KeyType::PrintSteps: return kind == Kind::Number;
    case KeyType::Size: return kind == Kind::Number || kind == Kind::String;
    case KeyType::Choice:
    case KeyType::Text: return kind == Kind::String;
    case KeyType::Betas:
    case KeyType::TextList: return kind == Kind::Array;
    case KeyType::Folders: return kind == Kind::String || kind == Kind::Array;
    case KeyType::Section:
      return kind == Kind::Object || (key.path == "zero_optimization" && kind == Kind::Boolean);
    case KeyType::OpenSection: return kind == Kind::Object;
    case KeyType::Any: return true;
  }
  return true;
}

bool judged(const ConfigKey& key) {
  return key.type != KeyType::Any && key.effect != KeyEffect::Forbidden;
}

void expect_refused(const ConfigKey& row, const std::string& value) {
  const Result<Config> config = parse(config_with(row.path, value));
  ASSERT_FALSE(config.has_value()) << row.path << ": " << value;
  const std::string expected =
      std::string(row.path) + ": got " + value + ", allowed " + allowed_text(meaning(row));
  EXPECT_TRUE(config.error().message.starts_with(expected)) << config.error().message;
  EXPECT_EQ(config.error().code, ErrorCode::Invalid);
}

std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == path.npos ? "" : std::string(path.substr(0, dot));
}

/// True if keys that the table does not have are ignored beside this one.
bool in_open_section(const ConfigKey& row) {
  const ConfigKey* parent = find_config_key(parent_of(row.path));
  return parent != nullptr && meaning(*parent).type == KeyType::OpenSection;
}

TEST(ConfigHostileKeys, EveryMisspeltKeyIsRefusedWithTheNearestName) {
  int reached = 0;
  for (const ConfigKey& row : config_keys()) {
    if (in_open_section(row)) continue;
    const std::string typed = std::string(row.path) + "q";
    const Result<Config> config = parse(config_with(typed, "1"));
    ASSERT_FALSE(config.has_value()) << typed;
    const std::string name(row.path.substr(row.path.rfind('.') + 1));
    const std::string expected = typed + ": unknown key; did you mean \"" + name + "\"?";
    EXPECT_NE(config.error().message.find(expected), std::string::npos) << config.error().message;
    ++reached;
  }
  EXPECT_GT(reached, 200);
}

TEST(ConfigHostileKeys, EveryKeyGivenTwiceIsRefused) {
  for (const ConfigKey& row : config_keys()) {
    const std::string name(row.path.substr(row.path.rfind('.') + 1));
    const std::string twice = "1, \"" + name + "\": 1";
    const Result<Config> config = parse(config_with(row.path, twice));
    ASSERT_FALSE(config.has_value()) << row.path;
    EXPECT_EQ(config.error().message, std::string(row.path) + ": given twice; keep one");
  }
}

TEST(ConfigHostileKeys, EveryKeyRefusesEveryOtherType) {
  int reached = 0;
  for (const ConfigKey& row : config_keys()) {
    if (!judged(meaning(row))) continue;
    for (const Typed& typed : kinds) {
      if (takes(meaning(row), typed.kind)) continue;
      const bool object = typed.kind == JsonValue::Kind::Object;
      const Result<Config> config = parse(config_with(row.path, typed.text));
      ASSERT_FALSE(config.has_value()) << row.path << ": " << typed.text;
      const std::string expected = std::string(row.path) + ": got " +
                                   (object ? "{...}" : typed.text) + ", allowed " +
                                   allowed_text(meaning(row));
      EXPECT_TRUE(config.error().message.starts_with(expected)) << config.error().message;
      ++reached;
    }
  }
  std::printf("%d refused of %d\n", reached, reached);
  EXPECT_GT(reached, 1000);
}

TEST(ConfigHostileKeys, EveryKeyRefusesHostileNumbers) {
  int reached = 0;
  std::vector<std::string> allowed;
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (!judged(key)) continue;
    for (const std::string value : hostile_numbers) {
      const bool never = key.type == KeyType::PrintSteps && value == "Infinity";
      const bool integer = key.type == KeyType::Integer;
      const bool number = integer || key.type == KeyType::Real;
      const bool inside = value == "1e308" ? key.high == any_finite
                          : value == "-1"  ? number && key.low <= -1
                                           : value == "-0.5" && !integer && number && key.low < 0;
      if (never || inside) {
        allowed.push_back(std::string(row.path) + " " + value);
        continue;
      }
      expect_refused(row, value);
      ++reached;
    }
  }
  std::printf("%d refused of %d\n", reached, reached);
  EXPECT_GT(reached, 1500);
  // The keys that accept these on purpose, so that a lost limit is noticed.
  EXPECT_EQ(allowed,
            (std::vector<std::string>{"steps_per_print Infinity", "fp16.min_loss_scale 1e308",
                                      "scheduler.params.last_batch_iteration -1",
                                      "zero_optimization.mics_shard_size -1"}));
}

TEST(ConfigHostileKeys, NumbersInListsAndSizesAreJudgedToo) {
  const ConfigKey& betas = *find_config_key("optimizer.params.betas");
  for (const std::string number : hostile_numbers) {
    expect_refused(betas, "[0.9, " + number + "]");
    expect_refused(betas, "[" + number + ", 0.9]");
  }
  for (const ConfigKey& row : config_keys()) {
    if (row.type != KeyType::Size) continue;
    for (const char* size : {"0", "\"0\"", "\"-1GiB\"", "\"NaN\"", "\"1e308\"", "\"1e30GiB\"",
                             "\"16EiB\"", "\"99999999999999999999\"", "\"\"", "\" \""}) {
      expect_refused(row, size);
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
