// Proves the rows of a cross entropy equal to their naive version bit for bit on every target, for
// any vocabulary and alignment, also with logits that are far apart or not finite; its exponential
// close to the exact one; and loss and gradient right against fp64.
#include "kernels/cross_entropy.h"

#include <cstring>

#include "kernels/exponential.h"
#include "tests/kernels/cross_entropy_case.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {
namespace {

class CrossEntropyOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(CrossEntropyOnTarget);

TEST_P(CrossEntropyOnTarget, EqualsTheNaiveVersion) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t vocabulary : counts) {
      if (vocabulary == 0) continue;
      for (const bool finite : {true, false}) {
        CrossEntropyCase fast(dtype, vocabulary, finite);
        CrossEntropyCase naive = fast;
        cross_entropy_rows(fast.rows());
        cross_entropy_rows_naive(naive.rows());
        fast.expect_equal(naive);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CrossEntropy, IsRightAgainstFp64) {
  CrossEntropyCase all(DType::Float32, 4099, /*finite=*/true);
  const CrossEntropyCase before = all;
  cross_entropy_rows(all.rows());
  for (std::uint64_t row = 0; row < CrossEntropyCase::row_count; ++row) {
    double sum = 0.0;
    double largest = -1e300;
    for (std::uint64_t i = 0; i < 4099; ++i) largest = std::max<double>(largest, before.at(row, i));
    for (std::uint64_t i = 0; i < 4099; ++i) sum += std::exp(before.at(row, i) - largest);
    EXPECT_NEAR(all.sums[row], sum, 1e-6 * sum);
    for (std::uint64_t i = 0; i < 4099; ++i) {
      const double expected = std::exp(before.at(row, i) - largest) / sum -
                              (i == static_cast<std::uint64_t>(before.targets[row]) ? 1.0 : 0.0);
      EXPECT_NEAR(all.at(row, i), CrossEntropyCase::scale * expected, 4e-7);
    }
  }
}

TEST(CrossEntropy, ItsExponentialIsWithinTwoUnitsInTheLastPlace) {
  double worst = 0.0;
  for (float x = 0.0f; x > Exponential::lowest; x = x * 1.0001f - 1e-6f) {
    const double real = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(real) - 23);
    worst = std::max(worst, std::fabs(exponential(x) - real) / unit);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-88.0f), 0.0f);
  EXPECT_EQ(exponential(-std::numeric_limits<float>::infinity()), 0.0f);
}

}  // namespace
}  // namespace artesian::kernels
