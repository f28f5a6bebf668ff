// Proves silu(gate) * up and its gradients equal to their naive versions bit for bit on every
// target, of any width and alignment, apart and packed, and right against fp64.
#include "kernels/swiglu.h"

#include "tests/kernels/swiglu_case.h"

namespace artesian::kernels {
namespace {

class SwigluOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(SwigluOnTarget);

TEST_P(SwigluOnTarget, EqualsTheNaiveVersion) {
  for_swiglu_cases([](SwigluCase fast) {
    SwigluCase naive = fast;
    fast.run(swiglu, swiglu_gradient);
    naive.run(swiglu_naive, swiglu_gradient_naive);
    fast.expect_equal(naive);
  });
}

TEST(Swiglu, IsRightAgainstFp64) {
  SwigluCase all(DType::Float32, 4099, Gated::Apart, /*finite=*/true);
  all.run(swiglu, swiglu_gradient);
  for (std::uint64_t i = 0; i < all.row_count * 4099; ++i) {
    const auto at = [&](const std::vector<unsigned char>& array) {
      return static_cast<double>(load_element(array.data(), DType::Float32, all.offset + i));
    };
    const double gate = at(all.gate), up = at(all.up), outer = at(all.outer);
    const double q = 1.0 / (1.0 + std::exp(-gate));
    const double room = 1e-6 * (1.0 + std::fabs(gate)) * (1.0 + std::fabs(outer));
    EXPECT_NEAR(at(all.product), gate * q * up, 1e-6 * std::fabs(gate * up) + 1e-37);
    EXPECT_NEAR(at(all.up_gradient), outer * gate * q, room);
    EXPECT_NEAR(at(all.gate_gradient), outer * up * q * (1.0 + gate * (1.0 - q)),
                room * (1.0 + std::fabs(up)));
  }
}

}  // namespace
}  // namespace artesian::kernels
