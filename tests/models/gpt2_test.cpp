// Proves that Gpt2 computes what transformers' GPT2LMHeadModel does (tests/models/reference.h).
#include "models/gpt2.h"

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

}  // namespace
}  // namespace artesian::models
