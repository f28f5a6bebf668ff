// Proves accumulation and the sum of squares equal to their naive versions bit for bit on every
// target, the naive ones against their definition, and that no infinity or NaN is missed.
#include "kernels/gradient.h"

#include <cstring>
#include <type_traits>

#include "tests/kernels/values.h"

namespace artesian::kernels {
namespace {

static_assert(
    std::is_same_v<decltype(&accumulate_gradient),
                   bool (*)(void*, DType, const float*, DType, std::uint64_t, Accumulate) noexcept>,
    "counts have 64 bits");

constexpr DType dtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};

class GradientOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(GradientOnTarget);

TEST_P(GradientOnTarget, AccumulationEqualsTheNaiveVersion) {
  for (const DType acc_dtype : dtypes) {
    for (const DType grad_dtype : dtypes) {
      for (const std::uint64_t count : counts) {
        const std::uint64_t offset = count % 3;
        const auto grad = mixed_values(count + 1, 7);
        for (const Accumulate how : {Accumulate::Set, Accumulate::Add}) {
          auto fast = array_of(mixed_values(count + 20, 8), acc_dtype, offset);
          auto naive = fast;
          const auto at = offset * dtype_size(acc_dtype);
          EXPECT_EQ(accumulate_gradient(fast.data() + at, acc_dtype, grad.data() + 1, grad_dtype,
                                        count, how),
                    accumulate_gradient_naive(naive.data() + at, acc_dtype, grad.data() + 1,
                                              grad_dtype, count, how));
          if (how == Accumulate::Set) {
            EXPECT_EQ(fast, naive) << "a conversion keeps even NaN payloads";
          }
          EXPECT_TRUE(same_arrays(fast, naive, acc_dtype)) << count;
        }
      }
    }
  }
}

TEST_P(GradientOnTarget, OverflowAtTheRoundingIsNotFinite) {
  for (const std::uint64_t count : {1ull, 16ull, 33ull}) {
    for (std::uint64_t place = 0; place < count; ++place) {
      std::vector<float> grad(count, 1.0f);
      std::vector<std::uint16_t> acc(count);
      EXPECT_TRUE(accumulate_gradient(acc.data(), DType::Float16, grad.data(), DType::Float16,
                                      count, Accumulate::Set));
      grad[place] = 65504.0f;  // 65505 rounds to 65504
      EXPECT_TRUE(accumulate_gradient(acc.data(), DType::Float16, grad.data(), DType::Float16,
                                      count, Accumulate::Add));
      EXPECT_FALSE(accumulate_gradient(acc.data(), DType::Float16, grad.data(), DType::Float16,
                                       count, Accumulate::Add));
      EXPECT_EQ(acc[place], 0x7c00u) << "infinity, as DeepSpeed's overflow check expects";
      grad[place] = 70000.0f;  // infinite in fp16 even though the accumulator could hold it
      std::vector<float> wide(count);
      EXPECT_FALSE(accumulate_gradient(wide.data(), DType::Float32, grad.data(), DType::Float16,
                                       count, Accumulate::Set));
      EXPECT_TRUE(accumulate_gradient(wide.data(), DType::Float32, grad.data(), DType::Float32,
                                      count, Accumulate::Set));
    }
  }
}

TEST(Gradient, RoundsAfterEveryMicroBatch) {
  // 2048 + 1 is a tie in fp16 and goes to 2048 each time; an fp32 accumulator counts.
  const float one = 1.0f;
  std::uint16_t narrow_acc = float_to_fp16(2048.0f);
  float wide_acc = 2048.0f;
  for (int batch = 0; batch < 4; ++batch) {
    accumulate_gradient(&narrow_acc, DType::Float16, &one, DType::Float16, 1, Accumulate::Add);
    accumulate_gradient(&wide_acc, DType::Float32, &one, DType::Float16, 1, Accumulate::Add);
  }
  EXPECT_EQ(fp16_to_float(narrow_acc), 2048.0f);
  EXPECT_EQ(wide_acc, 2052.0f);
}

std::vector<double> leaf_sums(const void* data, DType dtype, std::uint64_t count) {
  std::vector<double> sums((count + norm_leaf - 1) / norm_leaf + 1, -1.0);
  sum_squares(data, dtype, count, sums.data());
  EXPECT_EQ(sums.back(), -1.0);  // no more than there are
  sums.pop_back();
  return sums;
}

void expect_same_sums(const unsigned char* data, DType dtype, std::uint64_t count) {
  const std::vector<double> fast = leaf_sums(data, dtype, count);
  std::vector<double> naive(fast.size());
  sum_squares_naive(data, dtype, count, naive.data());
  for (std::size_t leaf = 0; leaf < fast.size(); ++leaf) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(fast[leaf]), std::bit_cast<std::uint64_t>(naive[leaf]))
        << fast[leaf] << " and " << naive[leaf] << ", count " << count << ", leaf " << leaf
        << ", seed " << test_seed();
  }
}

TEST_P(GradientOnTarget, SumsOfSquaresEqualTheNaiveVersionLeafByLeaf) {
  auto lengths = counts;
  lengths.insert(lengths.end(), {norm_leaf - 17, norm_leaf - 1, norm_leaf, norm_leaf + 1,
                                 5 * norm_leaf, 32 * norm_leaf + 15});
  for (const DType dtype : dtypes) {
    for (const std::uint64_t count : lengths) {
      const std::uint64_t offset = count % 3;
      const auto ordinary = array_of(ordinary_values(count, count), dtype, offset);
      expect_same_sums(ordinary.data() + offset * dtype_size(dtype), dtype, count);
      const auto mixed = array_of(mixed_values(count, count), dtype, offset);
      expect_same_sums(mixed.data() + offset * dtype_size(dtype), dtype, count);
    }
  }
}

/// A leaf's sum does not depend on what else is summed in the same call.
TEST_P(GradientOnTarget, LeavesSumAloneAsTheyDoTogether) {
  constexpr std::uint64_t leaves = 7;
  for (const DType dtype : dtypes) {
    const auto data = array_of(ordinary_values(leaves * norm_leaf, 5), dtype, 0);
    const auto together = leaf_sums(data.data(), dtype, leaves * norm_leaf);
    for (std::uint64_t leaf = 0; leaf < leaves; ++leaf) {
      const auto* begin = data.data() + leaf * norm_leaf * dtype_size(dtype);
      EXPECT_EQ(leaf_sums(begin, dtype, norm_leaf), std::vector<double>{together[leaf]});
    }
  }
}

TEST_P(GradientOnTarget, EveryInfinityAndNaNIsFound) {
  for (const DType dtype : dtypes) {
    for (const std::uint64_t count : {1ull, 5ull, 16ull, 45ull, 65536ull}) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        const std::uint64_t places[] = {0, count / 2, count < 17 ? 0 : count - 17, count - 1};
        for (const std::uint64_t place : places) {
          auto data = array_of(std::vector<float>(count, 2.0f), dtype, 0);
          for (const double sum : leaf_sums(data.data(), dtype, count)) EXPECT_GT(sum, 0.0);
          store_element(data.data(), dtype, place, bad);
          const auto sums = leaf_sums(data.data(), dtype, count);
          for (std::uint64_t leaf = 0; leaf < sums.size(); ++leaf) {
            const bool here = leaf == place / norm_leaf;
            EXPECT_EQ(std::isfinite(sums[leaf]), !here) << dtype_name(dtype) << place;
            EXPECT_EQ(std::isnan(sums[leaf]), here && std::isnan(bad));
          }
        }
      }
    }
  }
}

TEST_P(GradientOnTarget, TheLargestFiniteLeafIsFinite) {
  const std::vector<float> data(norm_leaf, std::numeric_limits<float>::lowest());
  const double sum = leaf_sums(data.data(), DType::Float32, norm_leaf).front();
  EXPECT_TRUE(std::isfinite(sum));
  EXPECT_GT(sum, 2.3e80);  // 2048 * (3.4e38)^2
}

TEST(Gradient, SumOfSquaresByHand) {
  std::vector<float> data(norm_leaf + 3, 0.0f);
  data[0] = 3.0f;
  data[16] = 4.0f;  // the same lane
  data[norm_leaf + 2] = 12.0f;
  double sums[2];
  sum_squares_naive(data.data(), DType::Float32, data.size(), sums);
  EXPECT_EQ(sums[0], 25.0);
  EXPECT_EQ(sums[1], 144.0);
}

}  // namespace
}  // namespace artesian::kernels
