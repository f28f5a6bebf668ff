// Proves that Gpt2 computes what transformers' GPT2LMHeadModel does (tests/models/reference.h), and
// that the head's loss is the cross entropy.
#include "models/gpt2.h"

#include "models/linear_cross_entropy.h"
#include "tests/models/reference.h"

namespace artesian::models {
namespace {

class Gpt2Reference : public testing::TestWithParam<std::string> {};

TEST_P(Gpt2Reference, LossAndGradientsEqualTransformers) {
  expect_loss_and_gradients(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Variants, Gpt2Reference, testing::ValuesIn(reference_files("gpt2_")),
                         variant_name);

TEST(Gpt2, ReferenceHasManyVariants) {
  EXPECT_GE(reference_files("gpt2_").size(), 20u);
}

/// A block in bf16 with and without reorder_and_upcast_attn is near the same block in fp32.
TEST(Gpt2, UpcastAttentionInANarrowDtypeIsNearFp32) {
  const Reference reference(ARTESIAN_REFERENCE_FOLDER "/gpt2_upcast.safetensors");
  const auto module = make_module(reference.config());
  std::vector<at::Tensor> wide, narrow;
  for (const std::uint32_t parameter : module->stages()[1].parameters) {
    wide.push_back(reference.tensor("weight." + module->parameters()[parameter].name));
    narrow.push_back(wide.back().to(at::kBFloat16));
  }
  const at::Tensor input = reference.tensor("weight.wpe.weight").unsqueeze(0);
  const at::Tensor none = at::zeros({1, input.size(1)}, at::kLong);
  const zero3::Batch batch{none, none};
  const at::Tensor expected = module->forward(1, input, wide, batch);
  const at::Tensor got = module->forward(1, input.to(at::kBFloat16), narrow, batch);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_difference(got.to(at::kFloat), expected), 0.05);
}

/// Against log_softmax and nll_loss in float64, with several passes of rows and a loss scale.
/// Logits reach 12 here, so exp() alone carries 12 * 2^-24 = 7e-7 into a gradient; 1e-5 leaves room
/// for the sums.
TEST(LinearCrossEntropy, EqualsTheNaiveVersionInSeveralPasses) {
  at::manual_seed(1);  // LibTorch seeds itself at random in C++
  const std::int64_t tokens = 37, hidden = 5, vocabulary = 20000;  // 13 rows a pass
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
  EXPECT_LE(relative_difference(got[0], expected[0]), 1e-5);
  EXPECT_LE(relative_difference(got[1], expected[1]), 1e-5);
}

TEST(LinearCrossEntropy, NarrowDtypesGiveGradientsInTheirDtypeOnce) {
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
  EXPECT_THROW(torch::autograd::grad({loss}, sources), c10::Error);  // never silently wrong
}

}  // namespace
}  // namespace artesian::models
