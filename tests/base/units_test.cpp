// Proves that sizes are read as interfaces.md states them (bare numbers are bytes, K and KiB are
// powers of 1024, KB of 1000, case is ignored), that anything else is refused, and the printed
// form.
#include "base/units.h"

#include <gtest/gtest.h>

namespace artesian {
namespace {

std::uint64_t parsed(std::string_view text) {
  auto size = parse_size(text);
  if (!size) ADD_FAILURE() << text << ": " << size.error().to_string();
  return size ? *size : 0;
}

TEST(Units, ParsesEverySuffixInAnyCase) {
  EXPECT_EQ(parsed("0"), 0u);
  EXPECT_EQ(parsed("4096"), 4096u);
  EXPECT_EQ(parsed("17b"), 17u);
  EXPECT_EQ(parsed("8K"), 8192u);
  EXPECT_EQ(parsed("8kib"), 8192u);
  EXPECT_EQ(parsed("8KB"), 8000u);
  EXPECT_EQ(parsed("1m"), 1u << 20);
  EXPECT_EQ(parsed("1MiB"), 1u << 20);
  EXPECT_EQ(parsed("1mb"), 1'000'000u);
  EXPECT_EQ(parsed("2G"), 2147483648u);
  EXPECT_EQ(parsed("2GB"), 2'000'000'000u);
  EXPECT_EQ(parsed("1T"), std::uint64_t{1} << 40);
  EXPECT_EQ(parsed("1tb"), 1'000'000'000'000u);
  EXPECT_EQ(parsed("1e9"), 1'000'000'000u);
  EXPECT_EQ(parsed("1.5 GiB"), 1610612736u);
}

TEST(Units, RefusesEverythingElse) {
  for (const char* text : {"", "G", "-1", "1 X", "0x10", "nan", "inf", "1GiBs", "1,5G", "9e99"}) {
    auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code, ErrorCode::Invalid);
    EXPECT_NE(size.error().message.find("allowed"), std::string::npos);
  }
}

TEST(Units, FormatsThreeDigits) {
  EXPECT_EQ(format_size(17), "17 B");
  EXPECT_EQ(format_size(1536), "1.50 KiB");
  EXPECT_EQ(format_size(512u << 20), "512 MiB");
  EXPECT_EQ(format_size(std::uint64_t{3} << 40), "3.00 TiB");
}

TEST(Units, RoundsToMultiples) {
  EXPECT_EQ(round_up(0, 4096), 0u);
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_down(4095, 4096), 0u);
  EXPECT_EQ(round_down(8191, 4096), 4096u);
}

}  // namespace
}  // namespace artesian
