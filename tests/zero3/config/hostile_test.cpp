// Proves that no text harms the reader: hostile and damaged configs end in an error, and soon.
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "tests/support/sanitizers.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {
namespace {

// CPU time, which does not depend on other load: some milliseconds. The limit catches parsing that
// never ends, or takes time quadratic in the length of the text.
constexpr double seconds_max = test_support::sanitized ? 30.0 : 1.0;

/// Expects an error, soon, from the whole reader.
void expect_refused(const std::string& text, const std::string& part) {
  const std::clock_t start = std::clock();
  const Result<Config> config = parse_config(text, "t", {});
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_FALSE(config.has_value()) << text.substr(0, 80);
  EXPECT_NE(config.error().message.find(part), std::string::npos) << config.error().message;
  EXPECT_LT(seconds, seconds_max) << text.substr(0, 80);
  EXPECT_LT(config.error().message.size(), 2000u);
}

std::string repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

TEST(ConfigHostile, HostileTexts) {
  expect_refused(repeated("[", 10000), "line 1, column 65: nested deeper than 64 levels");
  expect_refused(repeated("{\"a\":", 10000), "nested deeper than 64 levels");
  expect_refused(repeated("{\"a\":", 10000) + "1" + repeated("}", 10000), "nested deeper than 64");
  expect_refused(std::string(2 << 20, ' '), "allowed at most 1 MiB");
  expect_refused("{\"gradient_clipping\": 1e309}", "got 1e309, allowed");
  expect_refused("{\"train_batch_size\": 1e308}", "got 1e308, allowed");
  expect_refused("{\"train_batch_size\": -5}", "got -5, allowed");
  expect_refused("{\"gradient_clipping\": NaN}", "got NaN, allowed");
  expect_refused(std::string("{}\0", 3), "line 1, column 3: a NUL byte");
  expect_refused(std::string("{\"a\0b\": 1}", 10), "control character U+0000");
  expect_refused("{\"a\": \"\xFF\xFE\"}", "ill-formed UTF-8");
  expect_refused("{\"\xC3\x28\": 1}", "ill-formed UTF-8");
  expect_refused("\xFF\xFE{\0}\0", "line 1, column 1");  // UTF-16
  expect_refused("{\"a\": \"\\ud800\"}", "surrogate");
  expect_refused("{\"a\": \"unterminated", "missing closing quote");
  expect_refused("{\"a\": \"\\", "line 1, column");
  expect_refused("/*", "never closed");
  expect_refused("//", "end of input");
  expect_refused(std::string("{") + repeated("\"a\": 1, ", 100000) + "}",
                 "a: given twice; keep one");
  std::string unknown = "{";
  for (int i = 0; i < 60000; ++i) unknown += "\"key" + std::to_string(i) + "\":0,";
  expect_refused(unknown + "}", "... and 59995 more");
  expect_refused(std::string("{\"") + std::string(1000000, 'k') + "\": 1}", "unknown key");
  expect_refused(std::string("{\"fp16\": {\"enabled\": \"") + std::string(1000000, 'k') + "\"}}",
                 "..., allowed true or false");
}

TEST(ConfigHostile, RandomDamageNeverCrashes) {
  const std::string whole = R"({"fp16": {"enabled": true, "loss_scale": 0}, "optimizer": {"type":
      "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}}, // comment
      "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}},
      "aio": {"block_size": 1048576, "single_submit": "false"}, "steps_per_print": Infinity,})";
  ASSERT_TRUE(parse_config(whole, "t", {}).has_value());
  const auto seed = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  SCOPED_TRACE("repeat with --gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  const char bytes[] = "{}[]\",:0-1eE.tfn/*#\\\0\xC2\xA0\xEF I";
  const std::string letters(bytes, sizeof bytes - 1);
  int refused = 0;
  for (int run = 0; run < 4000; ++run) {
    std::string text = whole;
    for (unsigned long damage = 1 + random() % 3; damage > 0; --damage) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text.erase(at, 1 + random() % 5); break;
        case 1: text.insert(at, 1, letters[random() % letters.size()]); break;
        default: text[at] = letters[random() % letters.size()];
      }
    }
    refused += parse_config(text, "t", {}).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace artesian::zero3
