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

void expect_same_sum(const unsigned char* data, DType dtype, std::uint64_t count) {
  const SumSquares fast = sum_squares(data, dtype, count);
  const SumSquares naive = sum_squares_naive(data, dtype, count);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(fast.sum), std::bit_cast<std::uint64_t>(naive.sum))
      << fast.sum << " and " << naive.sum << ", count " << count << ", seed " << test_seed();
  EXPECT_EQ(fast.finite, naive.finite);
}

TEST_P(GradientOnTarget, SumOfSquaresEqualsTheNaiveVersion) {
  auto lengths = counts;
  lengths.insert(lengths.end(), {norm_block - 17, norm_block - 1, norm_block});
  for (const DType dtype : dtypes) {
    for (const std::uint64_t count : lengths) {
      const std::uint64_t offset = count % 3;
      const auto ordinary = array_of(ordinary_values(count, count), dtype, offset);
      expect_same_sum(ordinary.data() + offset * dtype_size(dtype), dtype, count);
      const auto mixed = array_of(mixed_values(count, count), dtype, offset);
      expect_same_sum(mixed.data() + offset * dtype_size(dtype), dtype, count);
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
          EXPECT_TRUE(sum_squares(data.data(), dtype, count).finite);
          store_element(data.data(), dtype, place, bad);
          const SumSquares sum = sum_squares(data.data(), dtype, count);
          EXPECT_FALSE(sum.finite) << dtype_name(dtype) << place;
          EXPECT_EQ(std::isnan(sum.sum), std::isnan(bad));
        }
      }
    }
  }
}

TEST_P(GradientOnTarget, TheLargestFiniteBlockIsFinite) {
  const std::vector<float> data(norm_block, std::numeric_limits<float>::lowest());
  const SumSquares sum = sum_squares(data.data(), DType::Float32, norm_block);
  EXPECT_TRUE(sum.finite);
  EXPECT_GT(sum.sum, 7e81);  // 65536 * (3.4e38)^2
}

TEST(Gradient, SumOfSquaresByHand) {
  std::vector<float> data(17, 0.0f);
  data[0] = 3.0f;
  data[16] = 4.0f;  // the same lane
  EXPECT_EQ(sum_squares_naive(data.data(), DType::Float32, 17).sum, 25.0);
  EXPECT_EQ(sum_squares_naive(data.data(), DType::Float32, 0).sum, 0.0);
}

}  // namespace
}  // namespace artesian::kernels
