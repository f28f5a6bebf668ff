// Proves that the head's loss is the cross entropy, that its bits depend neither on the dtype of
// the stored weight nor on the destination of its gradient, that a sink gets each element once, and
// that the loss scale is applied before a gradient is rounded. kernels/cross_entropy_test.cpp
// proves the rows.
#include "models/linear_cross_entropy.h"

#include "tests/models/reference.h"
#include "zero3/torch/matrix_tiles.h"

namespace artesian::models {
namespace {

/// Assembles a gradient from its parts.
class Collector final : public zero3::GradientSink {
 public:
  explicit Collector(const at::Tensor& weight)
      : gradient(at::zeros(weight.sizes(), at::kFloat)),
        times(at::zeros({weight.numel()}, at::kInt)) {}
  void add(std::size_t given, std::int64_t first, const at::Tensor& part) override {
    position = given;
    ++parts;
    dtype = part.scalar_type();
    gradient.flatten().narrow(0, first, part.numel()).copy_(part.flatten());
    times.narrow(0, first, part.numel()).add_(1);
  }

  at::Tensor gradient;
  at::Tensor times;  // how often each element arrived
  std::size_t position = 0;
  int parts = 0;
  at::ScalarType dtype = at::kFloat;
};

struct Result {
  at::Tensor loss;
  at::Tensor of_input;
  at::Tensor of_weight;
};

Result run(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& targets,
           WeightGradient gradient = {}) {
  const at::Tensor x = input.detach().requires_grad_(true);
  const at::Tensor w = weight.detach().requires_grad_(true);
  const at::Tensor loss = linear_cross_entropy(x, w, targets, gradient);
  const auto got = torch::autograd::grad({loss}, {x, w}, {at::full({}, 64.0f)}, c10::nullopt,
                                         /*create_graph=*/false, /*allow_unused=*/true);
  return {loss.detach(), got[0], got[1]};
}

/// Three tiles, the last one not full.
struct Case {
  Case() {
    at::manual_seed(3);
    input = at::randn({6, hidden});
    weight = at::randn({2 * zero3::tile_rows(hidden) + 100, hidden}).mul_(0.05);
    targets = at::randint(weight.size(0), {6}, at::kLong);
  }
  const std::int64_t hidden = 4096;
  at::Tensor input, weight, targets;
};

/// Against log_softmax and nll_loss in float64, with a loss scale.
/// Logits reach 12 here, so exp() alone carries 12 * 2^-24 = 7e-7 into a gradient; 1e-5 leaves room
/// for the sums. The input's gradient adds up 20,000 products of either sign, which some
/// processors' GEMM does one by one: at worst 20,000 * 2^-24 = 1e-3 of their magnitudes, by chance
/// its root.
TEST(LinearCrossEntropy, EqualsTheNaiveVersion) {
  at::manual_seed(1);  // LibTorch seeds itself at random in C++
  const std::int64_t tokens = 37, hidden = 5, vocabulary = 20000;
  const at::Tensor input = at::randn({tokens, hidden}).requires_grad_(true);
  const at::Tensor weight = at::randn({vocabulary, hidden}).requires_grad_(true);
  const at::Tensor targets = at::randint(vocabulary, {tokens}, at::kLong);
  const at::Tensor scale = at::full({}, 1024.0f);
  const at::Tensor loss = linear_cross_entropy(input, weight, targets);
  const auto got = torch::autograd::grad({loss}, {input, weight}, {scale});
  const at::Tensor logits = at::mm(input.to(at::kDouble), weight.to(at::kDouble).t());
  const at::Tensor naive = at::nll_loss(at::log_softmax(logits, 1), targets);
  const auto expected = torch::autograd::grad({naive}, {input, weight}, {scale.to(at::kDouble)});
  EXPECT_LE(relative_difference(loss, naive), 1e-5);
  EXPECT_LE(relative_difference(got[0], expected[0]), 1e-4);
  EXPECT_LE(relative_difference(got[1], expected[1]), 1e-5);
}

TEST(LinearCrossEntropy, NarrowDtypesGiveGradientsInTheirDtype) {
  at::manual_seed(2);
  const at::Tensor input = at::randn({6, 5});
  const at::Tensor weight = at::randn({11, 5});
  const at::Tensor targets = at::randint(11, {6}, at::kLong);
  const at::Tensor narrow_input = input.to(at::kBFloat16).requires_grad_(true);
  const at::Tensor narrow_weight = weight.to(at::kBFloat16).requires_grad_(true);
  const at::Tensor loss = linear_cross_entropy(narrow_input, narrow_weight, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_LE(relative_difference(loss, linear_cross_entropy(input, weight, targets)), 0.05);
  const std::vector<at::Tensor> sources{narrow_input, narrow_weight};
  const auto got = torch::autograd::grad({loss}, sources, {}, /*retain_graph=*/true);
  EXPECT_EQ(got[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(got[1].scalar_type(), at::kBFloat16);
  const auto again = torch::autograd::grad({loss}, sources);  // the first call consumed nothing
  EXPECT_TRUE(at::equal(again[0], got[0]));
  EXPECT_TRUE(at::equal(again[1], got[1]));
}

/// A gradient below fp16's least subnormal, unless it is multiplied by the loss scale.
TEST(LinearCrossEntropy, ALossScaleThatIsSaidInForwardKeepsSmallGradients) {
  const at::Tensor input = at::ones({1, 1}, at::kHalf).requires_grad_(true);
  const at::Tensor weight = at::full({2, 1}, 0.0f, at::kHalf);
  weight[1][0] = -18.0f;  // e^-18 = 1.5e-8
  const at::Tensor targets = at::zeros({1}, at::kLong);
  const auto of_input = [&](double said) {
    const at::Tensor loss = linear_cross_entropy(input, weight, targets, {}, said);
    return torch::autograd::grad({loss}, {input}, {at::full({}, 65536.0f)})[0].item<double>();
  };
  EXPECT_EQ(of_input(1.0), 0.0);
  EXPECT_NEAR(of_input(65536.0), 65536.0 * std::exp(-18.0) * -18.0, 0.001);
}

TEST(LinearCrossEntropy, WhatBackwardMultipliesByIsInTheGradientWhateverWasSaid) {
  const Case of;
  const at::Tensor x = of.input.detach().requires_grad_(true);
  const auto of_input = [&](double said) {
    const at::Tensor loss = linear_cross_entropy(x, of.weight, of.targets, {}, said);
    return torch::autograd::grad({loss}, {x}, {at::full({}, 64.0f)})[0];
  };
  const at::Tensor expected = of_input(64.0);
  EXPECT_TRUE(at::equal(of_input(1.0), expected));  // powers of two
  EXPECT_LE(relative_difference(of_input(3.0), expected), 1e-5);
}

TEST(LinearCrossEntropy, ATargetOutsideOfTheVocabularyThrows) {
  const at::Tensor input = at::ones({2, 3});
  const at::Tensor weight = at::ones({5, 3});
  for (const std::int64_t target : {-1, 5}) {
    EXPECT_THROW(linear_cross_entropy(input, weight, at::full({2}, target, at::kLong)), c10::Error);
  }
}

/// The same against float64 with several tiles.
TEST(LinearCrossEntropy, EqualsTheNaiveVersionInSeveralTiles) {
  const Case of;
  const Result got = run(of.input, of.weight, of.targets);
  const at::Tensor x = of.input.to(at::kDouble).requires_grad_(true);
  const at::Tensor w = of.weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor naive = at::nll_loss(at::log_softmax(at::mm(x, w.t()), 1), of.targets);
  const auto expected = torch::autograd::grad({naive}, {x, w}, {at::full({}, 64.0, at::kDouble)});
  EXPECT_LE(relative_difference(got.loss, naive), 1e-5);
  EXPECT_LE(relative_difference(got.of_input, expected[0]), 1e-5);
  EXPECT_LE(relative_difference(got.of_weight, expected[1]), 1e-5);
}

TEST(LinearCrossEntropy, TheWeightsDtypeIsNotOfItsBits) {
  const Case of;
  for (const at::ScalarType stored : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = of.weight.to(stored);
    const Result expected = run(of.input, narrow.to(at::kFloat), of.targets);
    Collector sink(narrow);
    const Result got = run(of.input, narrow, of.targets, {&sink, 7});
    EXPECT_TRUE(at::equal(got.loss, expected.loss));
    EXPECT_TRUE(at::equal(got.of_input, expected.of_input));
    EXPECT_FALSE(got.of_weight.defined());
    EXPECT_TRUE(at::equal(sink.gradient, expected.of_weight));
    EXPECT_TRUE(sink.times.eq(1).all().item<bool>());
    EXPECT_EQ(sink.dtype, at::kFloat);
    EXPECT_EQ(sink.position, 7u);
    EXPECT_EQ(sink.parts, 3);
  }
}

TEST(LinearCrossEntropy, InANarrowDtypeTheSinkGetsWhatAutogradWould) {
  const Case of;
  const at::Tensor input = of.input.to(at::kBFloat16);
  const at::Tensor weight = of.weight.to(at::kBFloat16);
  const Result expected = run(input, weight, of.targets);
  Collector sink(weight);
  const Result got = run(input, weight, of.targets, {&sink, 0});
  EXPECT_TRUE(at::equal(got.of_input, expected.of_input));
  EXPECT_TRUE(at::equal(sink.gradient, expected.of_weight.to(at::kFloat)));
  EXPECT_EQ(sink.dtype, at::kBFloat16);
  EXPECT_TRUE(sink.times.eq(1).all().item<bool>());
}

TEST(LinearCrossEntropy, AFrozenWeightsGradientIsNotComputed) {
  const Case of;
  const at::Tensor x = of.input.detach().requires_grad_(true);
  Collector sink(of.weight);
  const at::Tensor loss = linear_cross_entropy(x, of.weight, of.targets, {&sink, 0});
  const auto of_input = torch::autograd::grad({loss}, {x}, {at::full({}, 64.0f)})[0];
  EXPECT_TRUE(at::equal(of_input, run(of.input, of.weight, of.targets).of_input));
  EXPECT_EQ(sink.parts, 0);
}

}  // namespace
}  // namespace artesian::models
