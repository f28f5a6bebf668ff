// Proves silu(gate) * up and its gradients right against float64 in every dtype, the same bits
// packed and apart, and those of a row the same beside any others. kernels/swiglu_test.cpp proves
// the elements.
#include "models/swiglu.h"

#include "tests/models/reference.h"

namespace artesian::models {
namespace {

struct Result {
  at::Tensor product, of_gate, of_up;
};

Result apart(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& outer) {
  const at::Tensor x = gate.detach().requires_grad_(true);
  const at::Tensor y = up.detach().requires_grad_(true);
  const at::Tensor product = swiglu(x, y);
  const auto got = torch::autograd::grad({product}, {x, y}, {outer});
  return {product.detach(), got[0], got[1]};
}

Result packed(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& outer) {
  const at::Tensor both = at::cat({gate, up}, -1).requires_grad_(true);
  const at::Tensor product = packed_swiglu(both);
  const auto got = torch::autograd::grad({product}, {both}, {outer})[0].chunk(2, -1);
  return {product.detach(), got[0], got[1]};
}

TEST(Swiglu, EqualsTheFormulaApartAndPacked) {
  at::manual_seed(5);
  const at::Tensor gate = at::randn({3, 50, 1031}).mul_(4);  // for several threads
  const at::Tensor up = at::randn_like(gate);
  const at::Tensor outer = at::randn_like(gate);
  const at::Tensor x = gate.to(at::kDouble).requires_grad_(true);
  const at::Tensor y = up.to(at::kDouble).requires_grad_(true);
  const at::Tensor naive = at::silu(x) * y;
  const auto expected = torch::autograd::grad({naive}, {x, y}, {outer.to(at::kDouble)});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double room = type == at::kFloat ? 1e-6 : 0.02;
    const Result got = apart(gate.to(type), up.to(type), outer.to(type));
    EXPECT_EQ(got.product.scalar_type(), type);
    EXPECT_LE(relative_difference(got.product.to(at::kDouble), naive), room);
    EXPECT_LE(relative_difference(got.of_gate.to(at::kDouble), expected[0]), room);
    EXPECT_LE(relative_difference(got.of_up.to(at::kDouble), expected[1]), room);
    const Result same = packed(gate.to(type), up.to(type), outer.to(type));
    EXPECT_TRUE(at::equal(same.product, got.product));
    EXPECT_TRUE(at::equal(same.of_gate, got.of_gate));
    EXPECT_TRUE(at::equal(same.of_up, got.of_up));
    const auto row = [&](const at::Tensor& all) { return all.to(type).narrow(1, 7, 1); };
    const Result alone = apart(row(gate), row(up), row(outer));
    EXPECT_TRUE(at::equal(alone.product, row(got.product)));
    EXPECT_TRUE(at::equal(alone.of_gate, row(got.of_gate)));
  }
}

/// A model of another dtype is an error, not a crash.
TEST(Swiglu, OtherDtypesAndShapesThrow) {
  const at::Tensor wide = at::ones({2, 4}, at::kDouble);
  EXPECT_THROW(swiglu(wide, wide), c10::Error);
  EXPECT_THROW(swiglu(at::ones({2, 4}), at::ones({2, 3})), c10::Error);
  EXPECT_THROW(packed_swiglu(at::ones({2, 3})), c10::Error);
  EXPECT_EQ(swiglu(at::ones({0, 4}), at::ones({0, 4})).numel(), 0);
}

}  // namespace
}  // namespace artesian::models
