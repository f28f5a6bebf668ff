// Proves the software conversions right by value: every 16-bit pattern survives the round trip, and
// every rounding of a float is to the nearest neighbour, ties to even.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace artesian {
namespace {

TEST(DType, EveryFp16PatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = fp16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value)))) << bits;
    } else {
      EXPECT_EQ(float_to_fp16(value), half);
    }
  }
}

TEST(DType, EveryBf16PatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto brain = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_float(brain);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    } else {
      EXPECT_EQ(float_to_bf16(value), brain);
    }
  }
}

TEST(DType, Fp16RoundsToNearestTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {  // positive finite neighbours
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float below = fp16_to_float(low);
    const float above = fp16_to_float(high);
    const float middle = below + (above - below) / 2;  // exact in fp32
    const auto even = (bits & 1u) == 0 ? low : high;
    EXPECT_EQ(float_to_fp16(middle), even) << bits;
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 0.0f)), low) << bits;
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, above * 2)), high) << bits;
    EXPECT_EQ(float_to_fp16(-middle), even | 0x8000u) << bits;
  }
}

TEST(DType, Fp16OverflowsToInfinityAt65520) {
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bffu);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00u);
  EXPECT_EQ(float_to_fp16(-std::numeric_limits<float>::infinity()), 0xfc00u);
}

TEST(DType, Bf16RoundsToNearestTiesToEven) {
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80u);  // halfway between 1 and the next: to even
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82u);  // halfway above an odd pattern: up
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80u);
}

}  // namespace
}  // namespace artesian
