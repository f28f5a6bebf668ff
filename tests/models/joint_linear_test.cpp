// Proves joint products and their gradients equal to products with each matrix, with the same bits
// whether the matrices are contiguous or not.
#include "models/joint_linear.h"

#include "tests/models/reference.h"

namespace artesian::models {
namespace {

struct Case {
  at::Tensor input, all;  // the matrices side by side
  std::vector<std::int64_t> rows;

  std::vector<at::Tensor> matrices(bool copied) const {
    std::vector<at::Tensor> made;
    for (const at::Tensor& part : all.split_with_sizes(rows, 0)) {
      // Leaves over the memory of `all`, like an engine's parameters.
      at::Tensor own =
          copied ? part.clone() : at::from_blob(part.data_ptr(), part.sizes(), part.options());
      made.push_back(own.requires_grad_(true));
    }
    return made;
  }
};

Case make(at::ScalarType type, std::vector<std::int64_t> rows) {
  at::manual_seed(3);
  std::int64_t sum = 0;
  for (const std::int64_t each : rows) sum += each;
  return {at::randn({2, 5, 64}).to(type), (at::randn({sum, 64}) * 0.1).to(type), std::move(rows)};
}

struct Outcome {
  at::Tensor product;
  std::vector<at::Tensor> gradients;  // of the input, and of each matrix
};

Outcome run(const Case& of, bool copied) {
  at::Tensor input = of.input.detach().requires_grad_(true);
  const auto matrices = of.matrices(copied);
  const at::Tensor product = joint_linear(input, matrices);
  std::vector<at::Tensor> sources{input};
  sources.insert(sources.end(), matrices.begin(), matrices.end());
  return {product.detach(), torch::autograd::grad({product}, sources, {product.detach()})};
}

TEST(JointLinear, EqualsTheProductsWithEachMatrix) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& rows : {std::vector<std::int64_t>{64, 32, 32}, {160, 96}}) {
      const Case of = make(type, rows);
      const Outcome got = run(of, false);
      at::Tensor input = of.input.to(at::kDouble).requires_grad_(true);
      std::vector<at::Tensor> sources{input};
      std::vector<at::Tensor> products;
      for (const at::Tensor& matrix : of.matrices(true)) {
        sources.push_back(matrix.detach().to(at::kDouble).requires_grad_(true));
        products.push_back(at::linear(input, sources.back()));
      }
      const at::Tensor expected = at::cat(products, -1);
      const double room = type == at::kFloat ? 1e-5 : 0.02;
      EXPECT_LE(relative_difference(got.product.to(at::kDouble), expected), room);
      const auto gradients =
          torch::autograd::grad({expected}, sources, {got.product.to(at::kDouble)});
      for (std::size_t index = 0; index < gradients.size(); ++index) {
        EXPECT_EQ(got.gradients[index].sizes(), gradients[index].sizes());
        EXPECT_LE(relative_difference(got.gradients[index].to(at::kDouble), gradients[index]), room)
            << index;
      }
    }
  }
}

TEST(JointLinear, HasTheSameBitsWhereverTheMatricesLie) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Case of = make(type, {64, 32, 32});
    const Outcome side_by_side = run(of, false);
    const Outcome copied = run(of, true);
    EXPECT_TRUE(at::equal(side_by_side.product, copied.product));
    for (std::size_t index = 0; index < copied.gradients.size(); ++index) {
      EXPECT_TRUE(at::equal(side_by_side.gradients[index], copied.gradients[index])) << index;
    }
  }
}

TEST(JointLinear, FrozenMatricesGetNoGradient) {
  const Case of = make(at::kFloat, {64, 32, 32});
  at::Tensor input = of.input.detach().requires_grad_(true);
  auto matrices = of.matrices(true);
  for (at::Tensor& matrix : matrices) matrix.requires_grad_(false);
  joint_linear(input, matrices).sum().backward();
  EXPECT_TRUE(input.grad().defined());
  matrices[1].requires_grad_(true);
  joint_linear(input, matrices).sum().backward();
  EXPECT_TRUE(matrices[1].grad().defined());
  EXPECT_FALSE(matrices[0].grad().defined());
}

TEST(JointLinear, OneMatrixOrFourThrow) {
  const at::Tensor matrix = at::ones({4, 4});
  EXPECT_THROW(joint_linear(matrix, {matrix}), c10::Error);
  EXPECT_THROW(joint_linear(matrix, {matrix, matrix, matrix, matrix}), c10::Error);
}

TEST(JointLinear, MatricesOfWholeLeavesLieBeforeOthers) {
  EXPECT_TRUE(lies_before_others(4096 * 4096));
  EXPECT_FALSE(lies_before_others(64 * 33));
}

}  // namespace
}  // namespace artesian::models
