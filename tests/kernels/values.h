// What the kernel tests share: values that find mistakes, comparison by bits, and a fixture that
// runs a test on every dispatch target.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/element.h"

namespace artesian::kernels {

/// Lengths around every vector length and unrolling.
inline const std::vector<std::uint64_t> counts = {0,  1,  2,  3,  7,  8,   9,   15,  16,   17,  31,
                                                  32, 33, 63, 64, 65, 127, 128, 129, 1000, 4099};

/// ARTESIAN_SEED of the environment, or 1: printed by a failing test, given to repeat it.
inline std::uint64_t test_seed() {
  const char* text = std::getenv("ARTESIAN_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

/// A float with a uniformly random sign, mantissa and exponent in [-exponent_max, exponent_max].
inline float wide_value(std::uint64_t word, int exponent_max) {
  const auto mantissa = static_cast<float>(word & 0xffffffu) * 0x1p-24f + 1.0f;
  const auto range = static_cast<std::uint64_t>(2 * exponent_max + 1);
  const auto exponent = static_cast<int>((word >> 25) % range) - exponent_max;
  const float magnitude = std::ldexp(mantissa, exponent);
  return ((word >> 24) & 1u) != 0 ? -magnitude : magnitude;
}

/// Signed zeros, subnormals of each type, ties, the edges of each range, infinities and NaNs.
inline const std::vector<float>& special_values() {
  static const std::vector<float> values = [] {
    std::vector<float> list;
    for (const std::uint32_t bits :
         {0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u,               // fp32 subnormals
          0x33000000u, 0x33000001u, 0x32ffffffu, 0x33800000u, 0x33c00000u,  // fp16 subnormals
          0x387fc000u, 0x387fe000u, 0x387fffffu, 0x38800000u, 0x38800001u,  // fp16 smallest normal
          0x3f800000u, 0x3f801000u, 0x3f801001u, 0x3f803000u,               // fp16 ties
          0x3f808000u, 0x3f808001u, 0x3f818000u,                            // bf16 ties
          0x477fe000u, 0x477fefffu, 0x477ff000u, 0x47800000u,               // fp16 largest
          0x7f7f0000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,               // bf16 largest
          0x7f800000u, 0x7f800001u, 0x7f801fffu, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu}) {
      list.push_back(std::bit_cast<float>(bits));
      list.push_back(std::bit_cast<float>(bits | 0x80000000u));
    }
    return list;
  }();
  return values;
}

/// n values: ordinary ones, wide ones and, one in eight, special ones.
inline std::vector<float> mixed_values(std::uint64_t n, std::uint64_t stream) {
  std::vector<float> values(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t word = random_word(test_seed(), stream, i);
    const auto& special = special_values();
    values[i] = (word >> 61) == 0   ? special[word % special.size()]
                : (word >> 61) == 1 ? wide_value(word, 126)
                                    : wide_value(word, 8);
  }
  return values;
}

/// n finite values of ordinary size.
inline std::vector<float> ordinary_values(std::uint64_t n, std::uint64_t stream) {
  std::vector<float> values(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    values[i] = wide_value(random_word(test_seed(), stream, i), 6);
  }
  return values;
}

/// The bytes of the values rounded to dtype, with `offset` elements of something before them.
inline std::vector<unsigned char> array_of(const std::vector<float>& values, DType dtype,
                                           std::uint64_t offset) {
  std::vector<unsigned char> bytes((values.size() + offset) * dtype_size(dtype), 0x5a);
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    store_element(bytes.data(), dtype, offset + i, values[i]);
  }
  return bytes;
}

/// Equal bits, or both NaN (which NaN arithmetic yields is not specified).
inline bool same_value(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// True if two arrays hold the same values, element by element; reports the first that differs.
inline testing::AssertionResult same_arrays(const std::vector<unsigned char>& a,
                                            const std::vector<unsigned char>& b, DType dtype) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "lengths differ";
  for (std::uint64_t i = 0; i < a.size() / dtype_size(dtype); ++i) {
    const float x = load_element(a.data(), dtype, i);
    const float y = load_element(b.data(), dtype, i);
    if (!same_value(x, y)) {
      return testing::AssertionFailure()
             << "element " << i << ": " << x << " and " << y << ", seed " << test_seed();
    }
  }
  return testing::AssertionSuccess();
}

/// Runs on the target named by the parameter.
class OnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto forced = force_target(GetParam());
    ASSERT_TRUE(forced.has_value()) << forced.error().to_string();
    ASSERT_EQ(active_target_name(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(force_target("").has_value()); }
};

inline std::string target_test_name(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace artesian::kernels

/// Instantiates a suite derived from OnTarget on every target of this machine.
#define ARTESIAN_ON_EVERY_TARGET(suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(Targets, suite,                                              \
                           testing::ValuesIn(::artesian::kernels::supported_targets()), \
                           ::artesian::kernels::target_test_name)
