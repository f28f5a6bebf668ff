// Proves that Llama computes what transformers' LlamaForCausalLM does (tests/models/reference.h),
// that RMSNorm is its formula in every dtype, that rotary embeddings have the operators' bits, and
// that the stated work of a model is that of its parameters.
#include "models/llama.h"

#include <ATen/Parallel.h>

#include "models/flops.h"
#include "models/rms_norm.h"
#include "tests/models/reference.h"

namespace artesian::models {
namespace {

class LlamaReference : public testing::TestWithParam<std::string> {};

TEST_P(LlamaReference, LossAndGradientsEqualTransformers) {
  expect_loss_and_gradients(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Variants, LlamaReference, testing::ValuesIn(reference_files("llama_")),
                         variant_name);

TEST(Llama, ReferenceHasManyVariants) {
  EXPECT_GE(reference_files("llama_").size(), 28u);
}

/// Item 15: Mistral, Qwen2, Qwen3 and Phi-3.
class RelativesReference : public testing::TestWithParam<std::string> {};

TEST_P(RelativesReference, LossAndGradientsEqualTransformers) {
  expect_loss_and_gradients(GetParam());
}

std::vector<std::string> files_of_relatives() {
  std::vector<std::string> files;
  for (const char* kind : {"mistral_", "qwen2_", "qwen3_", "phi3_"}) {
    const auto some = reference_files(kind);
    EXPECT_GE(some.size(), 6u) << kind;
    files.insert(files.end(), some.begin(), some.end());
  }
  return files;
}

INSTANTIATE_TEST_SUITE_P(Variants, RelativesReference, testing::ValuesIn(files_of_relatives()),
                         variant_name);

TEST(Relatives, ReferenceHasManyVariants) {
  EXPECT_GE(files_of_relatives().size(), 24u);
}

/// The head and a block in bf16 are close to the same in fp32, and return the dtype of their input.
TEST(Llama, ABlockInANarrowDtypeIsNearFp32) {
  const Reference reference(ARTESIAN_REFERENCE_FOLDER "/llama_biases.safetensors");
  const auto module = make_module(reference.config());
  std::vector<at::Tensor> wide, narrow;
  for (const std::uint32_t parameter : module->stages()[1].parameters) {
    wide.push_back(reference.tensor("weight." + module->parameters()[parameter].name));
    narrow.push_back(wide.back().to(at::kBFloat16));
  }
  at::manual_seed(1);
  const at::Tensor input = at::randn({2, 7, 8});
  const at::Tensor none = at::zeros({2, 7}, at::kLong);
  const zero3::Batch batch{none, none};
  const at::Tensor expected = module->forward(1, input, wide, batch);
  const at::Tensor got = module->forward(1, input.to(at::kBFloat16), narrow, batch);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_difference(got.to(at::kFloat), expected), 0.05);
  // Tables of one dtype and length are not reused for another.
  EXPECT_TRUE(at::equal(module->forward(1, input, wide, batch), expected));
  const at::Tensor prefix = module->forward(1, input.narrow(1, 0, 3), wide, batch);
  EXPECT_LE(relative_difference(prefix, expected.narrow(1, 0, 3)), 1e-6);
}

/// If LibTorch throws within a block, the module stays usable: the engine refuses the batch.
TEST(Llama, AThrowWithinABlockIsAThrow) {
  const Reference reference(ARTESIAN_REFERENCE_FOLDER "/llama_plain.safetensors");
  const auto module = make_module(reference.config());
  std::vector<at::Tensor> weights;
  for (const std::uint32_t parameter : module->stages()[1].parameters) {
    weights.push_back(reference.tensor("weight." + module->parameters()[parameter].name));
  }
  const at::Tensor none = at::zeros({1, 3}, at::kLong);
  const zero3::Batch batch{none, none};
  std::vector<at::Tensor> wrong = weights;
  wrong[4] = at::ones({5, 5});  // o_proj
  EXPECT_THROW(module->forward(1, at::ones({1, 3, 8}), wrong, batch), c10::Error);
  EXPECT_EQ(module->forward(1, at::ones({1, 3, 8}), weights, batch).numel(), 24);
}

TEST(Rotary, DynamicGrowsWithTheLengthBeyondThePositionsAlone) {
  const RotaryConfig config{
      .scaling = RotaryScaling::Dynamic, .head = 8, .positions = 16, .factor = 2.0};
  const Rotary rotary(config);
  const Rotary plain(RotaryConfig{.head = 8, .positions = 16});
  EXPECT_TRUE(at::equal(rotary.frequencies(5), rotary.frequencies(16)));
  EXPECT_TRUE(at::equal(rotary.frequencies(16), plain.frequencies(16)));
  EXPECT_TRUE(rotary.frequencies(32).lt(rotary.frequencies(16)).narrow(0, 1, 3).all().item<bool>());
}

/// The bits of LibTorch's operators, forward and backward, where tokens change in place (a product)
/// and where they must not (a view, a leaf).
TEST(Rotary, EqualsTheOperators) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Rotary rotary(RotaryConfig{.head = 6, .positions = 16});
    const at::Tensor leaf = at::randn({2, 11, 4 * 6 + 5}).to(type).requires_grad_(true);
    const at::Tensor outer = at::randn({2, 11, 4 * 6 + 5}).to(type);
    const at::Tensor angles = at::outer(at::arange(11, at::kFloat), rotary.frequencies(11));
    const at::Tensor twice = at::cat({angles, angles}, 1).unsqueeze(1);
    const at::Tensor heads = leaf.narrow(2, 0, 24).view({2, 11, 4, 6});
    const auto halves = heads.chunk(2, 3);
    const at::Tensor turned = heads * twice.cos().to(type) +
                              at::cat({halves[1].neg(), halves[0]}, 3) * twice.sin().to(type);
    const at::Tensor expected = at::cat({turned.flatten(2), leaf.narrow(2, 24, 5)}, 2);
    const at::Tensor gradient = torch::autograd::grad({expected}, {leaf}, {outer})[0];
    const at::Tensor before = leaf.detach().clone();
    const at::Tensor product = leaf * 1;
    for (const at::Tensor& given : {product, leaf.view_as(leaf), leaf}) {
      const at::Tensor got = rotary.turn(given, 4);
      EXPECT_EQ(got.data_ptr() == given.data_ptr(), given.is_same(product));
      EXPECT_TRUE(at::equal(got, expected));
      EXPECT_TRUE(at::equal(torch::autograd::grad({got}, {leaf}, {outer})[0], gradient));
      EXPECT_TRUE(at::equal(leaf, before));
    }
  }
}

/// The order in which the weight's sum adds many groups of rows does not depend on threads.
TEST(RmsNorm, ItsBitsDoNotDependOnThreads) {
  at::manual_seed(6);
  const at::Tensor input = at::randn({3, 1500, 48}).requires_grad_(true);  // groups of groups
  const at::Tensor weight = at::randn({48}).requires_grad_(true);
  const at::Tensor outer = at::randn({3, 1500, 48});
  const auto gradients = [&] {
    return torch::autograd::grad({rms_norm(input, weight, 1e-5)}, {input, weight}, {outer});
  };
  const int threads = at::get_num_threads();
  const auto expected = gradients();
  at::set_num_threads(1);
  const auto got = gradients();
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(got[0], expected[0]));
  EXPECT_TRUE(at::equal(got[1], expected[1]));
}

/// Against the formula in float64, with autograd's gradients.
TEST(RmsNorm, EqualsTheFormula) {
  at::manual_seed(3);
  const at::Tensor input = at::randn({3, 5, 24}).requires_grad_(true);
  const at::Tensor weight = at::randn({24}).requires_grad_(true);
  const at::Tensor outer = at::randn({3, 5, 24});
  const at::Tensor got = rms_norm(input, weight, 1e-3);
  const auto gradients = torch::autograd::grad({got}, {input, weight}, {outer});
  const at::Tensor wide = input.to(at::kDouble);
  const at::Tensor naive =
      wide * at::rsqrt(wide.square().mean(-1, true) + 1e-3) * weight.to(at::kDouble);
  const auto expected = torch::autograd::grad({naive}, {input, weight}, {outer.to(at::kDouble)});
  EXPECT_LE(relative_difference(got, naive), 1e-6);
  EXPECT_LE(relative_difference(gradients[0], expected[0]), 1e-6);
  EXPECT_LE(relative_difference(gradients[1], expected[1]), 1e-6);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow_input = input.detach().to(type).requires_grad_(true);
    const at::Tensor narrow_weight = weight.detach().to(type).requires_grad_(true);
    const at::Tensor narrow = rms_norm(narrow_input, narrow_weight, 1e-3);
    const std::vector<at::Tensor> sources{narrow_input, narrow_weight};
    const auto rounded = torch::autograd::grad({narrow}, sources, {outer.to(type)});
    EXPECT_EQ(narrow.scalar_type(), type);
    EXPECT_LE(relative_difference(narrow.to(at::kDouble), naive), 0.02);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(rounded[i].scalar_type(), type);
      EXPECT_LE(relative_difference(rounded[i].to(at::kFloat), expected[i]), 0.02);
    }
  }
}

/// 6 for each element of a matrix that is multiplied with, counted from the list of parameters.
TEST(Flops, AreThoseOfTheMatricesAndOfAttention) {
  for (const char* tied : {"true", "false"}) {
    const auto config = parse_model_config(
        std::string(R"({"model_type": "llama", "vocab_size": 77, "hidden_size": 24, "head_dim": 10,
            "intermediate_size": 31, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "tie_word_embeddings": )") +
            tied + "}",
        "config.json");
    ASSERT_TRUE(config.has_value());
    double elements = 77 * 24;  // the head, whether it has a table of its own or not
    for (const auto& parameter : model_parameters(*config)) {
      if (parameter.shape.size() == 2 && parameter.shape[0] != 77) {
        elements += static_cast<double>(parameter.numel());
      }
    }
    EXPECT_DOUBLE_EQ(flops_per_token(*config, 100), 6 * elements + 12.0 * 3 * 40 * 100);
  }
}

}  // namespace
}  // namespace artesian::models
