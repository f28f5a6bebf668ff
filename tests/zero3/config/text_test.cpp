// Proves the lenient reader: text as people paste it gives the same tree as clean text, the content
// of strings is never changed, and errors name their line and column.
#include "zero3/config/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace artesian::zero3 {
namespace {

/// The whole tree as canonical text.
std::string canonical(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::Array: {
      std::string text = "[";
      for (const JsonValue& element : value.elements) text += canonical(element) + ",";
      return text + "]";
    }
    case JsonValue::Kind::Object: {
      std::string text = "{";
      for (const auto& [name, member] : value.members) text += name + "=" + canonical(member) + ",";
      return text + "}";
    }
    default: return print_json(value);
  }
}

std::string read(std::string_view text) {
  const Result<JsonValue> value = read_json(text, "t");
  return value.has_value() ? canonical(value.value()) : "error: " + value.error().message;
}

TEST(ConfigText, AcceptsWhatPeoplePaste) {
  const std::string clean = R"({"a": [1, 2.5, "x"], "b": {"c": true, "d": null}})";
  const std::string tree = read(clean);
  EXPECT_EQ(tree, "{a=[1,2.5,\"x\",],b={c=true,d=null,},}");
  EXPECT_EQ(read("\xEF\xBB\xBF" + clean), tree);
  EXPECT_EQ(
      read("{\xC2\xA0\"a\":\xC2\xA0[1,\xC2\xA0 2.5,\"x\"],\xC2\xA0\xC2\xA0\"b\": {\"c\": true, "
           "\"d\":null}}\xC2\xA0"),
      tree);
  EXPECT_EQ(read("// first\n{\"a\": [1, /* two */ 2.5, \"x\"], # three\r\n\"b\": {\"c\": true, "
                 "\"d\": null}} // end"),
            tree);
  EXPECT_EQ(read("{\"a\": [1, 2.5, \"x\",], \"b\": {\"c\": true, \"d\": null, // last\n},\n}"),
            tree);
  EXPECT_EQ(read("\r\n{\r\n\"a\":\r\n[1,2.5,\"x\"],\"b\":{\"c\":true,\"d\":null}}\r\n"), tree);
}

TEST(ConfigText, LeavesStringsAlone) {
  EXPECT_EQ(read("\"a // b /* c */ # d ,} Infinity NaN \xC2\xA0\""),
            "\"a // b /* c */ # d ,} Infinity NaN \xC2\xA0\"");
  EXPECT_EQ(read(R"(["\"//", "\\", ",]"])"), R"(["\"//","\\",",]",])");
}

TEST(ConfigText, InfinityIsANumber) {
  const Result<JsonValue> value = read_json("{\"steps_per_print\": Infinity, \"b\": 1}", "t");
  ASSERT_TRUE(value.has_value());
  const JsonValue* number = value->find("steps_per_print");
  ASSERT_NE(number, nullptr);
  EXPECT_EQ(number->kind, JsonValue::Kind::Number);
  EXPECT_TRUE(std::isinf(number->number));
  EXPECT_EQ(number->text, "Infinity");
  EXPECT_EQ(read("\"Infinity\""), "\"Infinity\"");
}

TEST(ConfigText, NumbersBeyondJsonAreReadAsPythonReadsThem) {
  const Result<JsonValue> value =
      read_json("{\"a\": [NaN, \"NaN\", -Infinity, 1e999, \"__\", -2E+400, 1e308, 1e-999],}", "t");
  ASSERT_TRUE(value.has_value()) << value.error().message;
  const auto& all = value->find("a")->elements;
  ASSERT_EQ(all.size(), 8u);
  EXPECT_TRUE(std::isnan(all[0].number));
  EXPECT_EQ(all[1].kind, JsonValue::Kind::String);
  EXPECT_EQ(all[2].number, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(all[3].number, std::numeric_limits<double>::infinity());
  EXPECT_EQ(all[3].text, "1e999");
  EXPECT_FALSE(all[3].exact);
  EXPECT_EQ(all[4].text, "__");
  EXPECT_EQ(all[5].number, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(all[5].text, "-2E+400");
  EXPECT_EQ(all[6].number, 1e308);
  EXPECT_EQ(all[7].number, 0.0);
  EXPECT_EQ(read("[1e999x]"),
            "error: t: line 1, column 7: syntax error while parsing array - invalid literal; "
            "expected ']'");
}

TEST(ConfigText, NumbersKeepTheirSpellingAndTheirExactness) {
  const Result<JsonValue> value = read_json("[1e9, 0.94e6, 7, -3, 1.5, 1e300, -0]", "t");
  ASSERT_TRUE(value.has_value());
  const auto& numbers = value->elements;
  EXPECT_EQ(numbers[0].text, "1e9");
  EXPECT_TRUE(numbers[0].exact);
  EXPECT_EQ(numbers[0].integer, 1000000000u);
  EXPECT_TRUE(numbers[1].exact);
  EXPECT_EQ(numbers[1].integer, 940000u);
  EXPECT_EQ(numbers[2].integer, 7u);
  EXPECT_FALSE(numbers[3].exact);
  EXPECT_FALSE(numbers[4].exact);
  EXPECT_FALSE(numbers[5].exact);
  EXPECT_TRUE(numbers[6].exact);
}

TEST(ConfigText, ErrorsHaveLineAndColumnInCharacters) {
  EXPECT_EQ(read("{\n  \"a\": 1,\n  \"b\": @\n}"),
            "error: t: line 3, column 8: syntax error while parsing value - invalid literal");
  EXPECT_EQ(read("\xEF\xBB\xBF@"),
            "error: t: line 1, column 1: syntax error while parsing value - invalid literal");
  EXPECT_EQ(read("\xC2\xA0\xC2\xA0@"),
            "error: t: line 1, column 3: syntax error while parsing value - invalid literal");
  EXPECT_EQ(read("/* 1\n 2\n */ @"),
            "error: t: line 3, column 5: syntax error while parsing value - invalid literal");
}

TEST(ConfigText, LongValuesAreCutInMessages) {
  const std::string cut =
      print_json({.kind = JsonValue::Kind::String, .text = std::string(99, 'a')});
  EXPECT_EQ(cut, std::string("\"") + std::string(59, 'a') + "...");
  std::string wide;
  for (int i = 0; i < 60; ++i) wide += "\xE2\x82\xAC";  // three bytes each: cut between two
  EXPECT_EQ(print_json({.kind = JsonValue::Kind::String, .text = wide}).size(), 58u + 3u);
}

}  // namespace
}  // namespace artesian::zero3
