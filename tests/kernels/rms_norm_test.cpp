// Proves the norm of rows, its gradients and the sums of groups equal to their naive versions bit
// for bit on every target, of any width and alignment; right against fp64; and the same whether
// rows go in at once or cut between groups.
#include "kernels/rms_norm.h"

#include "tests/kernels/rms_norm_case.h"

namespace artesian::kernels {
namespace {

class RmsNormOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(RmsNormOnTarget);

TEST_P(RmsNormOnTarget, EqualsTheNaiveVersion) {
  for_rms_norm_cases([](RmsNormCase fast) {
    RmsNormCase naive = fast;
    fast.run(rms_norm, rms_norm_gradient, sum_groups);
    naive.run(rms_norm_naive, rms_norm_gradient_naive, sum_groups_naive);
    fast.expect_equal(naive);
  });
}

TEST(RmsNorm, IsRightAgainstFp64) {
  RmsNormCase all(DType::Float32, 1000, 70, /*finite=*/true);
  all.run(rms_norm, rms_norm_gradient, sum_groups);
  const auto at = [&](const std::vector<unsigned char>& array, std::uint64_t i) {
    return static_cast<double>(load_element(array.data(), DType::Float32, all.offset + i));
  };
  std::vector<double> sums(1000, 0.0), magnitudes(1000, 0.0);
  for (std::uint64_t row = 0; row < 70; ++row) {
    double squares = 0.0, along = 0.0, most = 0.0;
    for (std::uint64_t i = 0; i < 1000; ++i) squares += std::pow(at(all.input, row * 1000 + i), 2);
    const double inverse = 1.0 / std::sqrt(squares / 1000 + 1e-5f);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t k = row * 1000 + i;
      const double quotient = at(all.input, k) * inverse;
      const double inner = at(all.outer, k) * at(all.weight, i);
      along += inner * quotient / 1000;
      most = std::max({most, std::fabs(inner), std::fabs(inner * quotient)});
      sums[i] += at(all.outer, k) * quotient;
      magnitudes[i] += std::fabs(at(all.outer, k) * quotient);
      EXPECT_NEAR(at(all.output, k), quotient * at(all.weight, i),
                  1e-6 * std::fabs(quotient * at(all.weight, i)));
    }
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t k = row * 1000 + i;
      const double quotient = at(all.input, k) * inverse;
      const double expected = (at(all.outer, k) * at(all.weight, i) - quotient * along) * inverse;
      EXPECT_NEAR(at(all.input_gradient, k), expected,
                  2e-6 * inverse * (most + std::fabs(quotient) * most));
    }
  }
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_NEAR(all.total[i], sums[i], 5e-6 * magnitudes[i]);
}

TEST(RmsNorm, RowsMayBeCutBetweenGroups) {
  RmsNormCase whole(DType::BFloat16, 100, 3 * rows_per_group + 5, /*finite=*/true);
  RmsNormCase cut = whole;
  whole.run(rms_norm, rms_norm_gradient, sum_groups);
  for (std::uint64_t first = 0; first < cut.rows; first += rows_per_group) {
    RmsNormRows part = cut.given(cut.input.data(), cut.weight.data());
    const std::uint64_t bytes = cut.byte() + first * cut.width * 2;
    part.input = cut.input.data() + bytes;
    part.rows = std::min(rows_per_group, cut.rows - first);
    rms_norm(part, cut.output.data() + bytes, cut.inverses.data() + first);
    rms_norm_gradient(part, {.inverses = cut.inverses.data() + first,
                             .outer = cut.outer.data() + bytes,
                             .input = cut.input_gradient.data() + bytes,
                             .weight = cut.sums.data() + first / rows_per_group * cut.width});
  }
  sum_groups(cut.sums.data(), groups_of(cut.rows), cut.width, cut.total.data());
  cut.expect_equal(whole);
}

}  // namespace
}  // namespace artesian::kernels
