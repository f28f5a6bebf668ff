// Proves the generator to be Philox 4x32-10 (known answers of Random123, kat_vectors) and that
// every value depends on (seed, stream, index) alone, however a tensor is cut.
#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace artesian {
namespace {

TEST(Random, PhiloxKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, ~std::uint64_t{0}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0x299f31d0a4093822u),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Random, NormalsDoNotDependOnTheSlicing) {
  constexpr std::uint64_t first = 5;
  std::vector<float> whole(1000);
  fill_normal(whole, 42, 7, first);
  for (const std::size_t slice : {1u, 2u, 3u, 4u, 5u, 7u, 64u, 999u}) {
    std::vector<float> cut(whole.size());
    for (std::size_t begin = 0; begin < cut.size(); begin += slice) {
      const std::size_t count = std::min(slice, cut.size() - begin);
      fill_normal(std::span(cut).subspan(begin, count), 42, 7, first + begin);
    }
    EXPECT_EQ(cut, whole) << "slices of " << slice;
  }
}

TEST(Random, NormalsHaveMeanZeroAndVarianceOne) {
  std::vector<float> values(1 << 20);
  fill_normal(values, 1, 0, 0);
  double sum = 0;
  double sum_of_squares = 0;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    sum_of_squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 5e-3);             // five standard errors
  EXPECT_NEAR(sum_of_squares / count, 1.0, 7e-3);  // five standard errors
}

TEST(Random, StreamsSeedsAndIndicesDiffer) {
  std::set<std::uint64_t> words;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::uint64_t stream = 0; stream < 4; ++stream) {
      for (std::uint64_t index = 0; index < 64; ++index) {
        words.insert(random_word(seed, stream, index));
      }
    }
  }
  EXPECT_EQ(words.size(), 4u * 4u * 64u);
  EXPECT_EQ(random_word(3, 2, 1), random_word(3, 2, 1));
}

TEST(Random, EmptyTargetIsLeftAlone) {
  fill_normal({}, 1, 1, 1);
}

}  // namespace
}  // namespace artesian
