// Proves that Gpt2 computes what transformers' GPT2LMHeadModel does: losses and every gradient
// equal those of tests/models/reference (made in float64) to 1e-5 of the tensor's largest element.
// The model is driven as the engine does it: each stage on a detached input, autograd::grad stage
// by stage, the looked-up rows' gradients summed by token id. Prints the largest share of the
// tolerance used.
#include "models/gpt2.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>

#include "models/linear_cross_entropy.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/safetensors.h"

namespace artesian::models {
namespace {

constexpr double tolerance = 1e-5;

struct Reference {
  explicit Reference(const std::string& path)
      : file(std::move(SafetensorsFile::open(path)).value()) {}

  at::Tensor tensor(const std::string& name) const {
    const SafetensorsTensor* found = file.find(name);
    ARTESIAN_CHECK(found != nullptr);
    const std::vector<std::int64_t> shape(found->shape.begin(), found->shape.end());
    at::Tensor values = at::empty(shape, at::kFloat);
    const auto count = static_cast<std::size_t>(values.numel());
    EXPECT_TRUE(file.read(*found, 0, {values.data_ptr<float>(), count}).has_value());
    return values;
  }

  ModelConfig config() const {
    const at::Tensor bytes = tensor("config");
    const float* first = bytes.data_ptr<float>();
    std::string text;
    for (std::int64_t i = 0; i < bytes.numel(); ++i) text += static_cast<char>(first[i]);
    return std::move(parse_model_config(text, "reference")).value();
  }

  SafetensorsFile file;
};

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // by parameter; a tied weight's uses added up
};

/// One micro-batch, forward and backward, with unit-local graphs.
Outcome run_stages(zero3::Module& module, const std::vector<at::Tensor>& weights,
                   const zero3::Batch& batch) {
  const auto& stages = module.stages();
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::vector<at::Tensor>> leaves(stages.size());
  Outcome outcome;
  for (const auto& weight : weights) outcome.gradients.push_back(at::zeros_like(weight));
  at::Tensor next = weights[*stages[0].lookup].index_select(0, batch.input.flatten());
  next = next.view({batch.input.size(0), batch.input.size(1), -1});
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const std::uint32_t parameter : stages[stage].parameters) {
      if (stages[stage].lookup == parameter) continue;
      leaves[stage].push_back(weights[parameter].detach().requires_grad_(true));
    }
    inputs.push_back(next.detach().requires_grad_(true));
    outputs.push_back(module.forward(stage, inputs[stage], leaves[stage], batch));
    next = outputs[stage];
  }
  outcome.loss = outputs.back().detach();
  at::Tensor gradient = at::ones_like(outcome.loss);
  for (std::size_t stage = stages.size(); stage-- > 0;) {
    std::vector<at::Tensor> sources{inputs[stage]};
    sources.insert(sources.end(), leaves[stage].begin(), leaves[stage].end());
    const auto results = torch::autograd::grad({outputs[stage]}, sources, {gradient});
    std::size_t used = 1;
    for (const std::uint32_t parameter : stages[stage].parameters) {
      if (stages[stage].lookup != parameter) outcome.gradients[parameter].add_(results[used++]);
    }
    gradient = results[0];
  }
  at::Tensor rows = gradient.flatten(0, 1);
  outcome.gradients[*stages[0].lookup].index_add_(0, batch.input.flatten(), rows);
  return outcome;
}

/// The largest difference as a share of the largest element of `expected`.
double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  const double difference = (got - expected).abs().max().item<double>();
  return largest > 0 ? difference / largest : difference;
}

std::vector<std::string> reference_files() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(ARTESIAN_REFERENCE_FOLDER)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Gpt2Reference : public testing::TestWithParam<std::string> {};

TEST_P(Gpt2Reference, LossAndGradientsEqualTransformers) {
  const Reference reference(GetParam());
  const ModelConfig config = reference.config();
  const auto module = make_module(config);
  std::vector<at::Tensor> weights;
  for (const auto& parameter : module->parameters()) {
    weights.push_back(reference.tensor("weight." + parameter.name));
    ASSERT_EQ(weights.back().sizes(), at::IntArrayRef(parameter.shape)) << parameter.name;
  }
  const at::Tensor ids = reference.tensor("ids").to(at::kLong);
  const at::Tensor targets = reference.tensor("targets").to(at::kLong);
  const zero3::Batch batch{ids, targets};
  const Outcome outcome = run_stages(*module, weights, batch);
  EXPECT_EQ(outcome.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(outcome.loss.dim(), 0);
  double worst = relative_difference(outcome.loss, reference.tensor("loss").squeeze());
  EXPECT_LE(worst, tolerance) << "loss";
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = module->parameters()[i].name;
    const at::Tensor expected = reference.tensor("gradient." + name);
    const double difference = relative_difference(outcome.gradients[i], expected);
    EXPECT_LE(difference, tolerance) << name;
    worst = std::max(worst, difference);
  }
  std::printf("  share of the tolerance used: %.3f\n", worst / tolerance);

  const Outcome again = run_stages(*module, weights, batch);
  EXPECT_TRUE(at::equal(again.loss, outcome.loss));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(again.gradients[i], outcome.gradients[i])) << i;
  }
}

std::string variant_name(const testing::TestParamInfo<std::string>& test) {
  return std::filesystem::path(test.param).stem().string();
}

INSTANTIATE_TEST_SUITE_P(Variants, Gpt2Reference, testing::ValuesIn(reference_files()),
                         variant_name);

TEST(Gpt2, ReferenceHasManyVariants) {
  EXPECT_GE(reference_files().size(), 20u);
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
