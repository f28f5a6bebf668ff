// Shared by tests that compare models with transformers: files of tests/models/reference with a
// config, weights, a batch, its loss and all gradients, computed in float64. And a run of one
// micro-batch as the engine makes it: each stage on a detached input, autograd::grad stage by
// stage, gradients of looked-up rows summed by token id.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "models/registry.h"
#include "models/safetensors.h"

namespace artesian::models {

constexpr double reference_tolerance = 1e-5;

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
  std::vector<at::Tensor> gradients;  // by parameter; summed over a tied weight's uses
};

/// One micro-batch, forward and backward, with unit-local graphs.
inline Outcome run_stages(zero3::Module& module, const std::vector<at::Tensor>& weights,
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

/// The largest difference, relative to the largest element of `expected`.
inline double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  const double difference = (got - expected).abs().max().item<double>();
  return largest > 0 ? difference / largest : difference;
}

/// The files of one architecture: prefix "gpt2_".
inline std::vector<std::string> reference_files(const std::string& prefix) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(ARTESIAN_REFERENCE_FOLDER)) {
    if (entry.path().filename().string().starts_with(prefix)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Expects losses and every gradient to equal transformers' within the tolerance, relative to the
/// tensor's largest element, and the same bits in a second run. Prints the largest share of the
/// tolerance that was used.
inline void expect_loss_and_gradients(const std::string& path) {
  const Reference reference(path);
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
  EXPECT_LE(worst, reference_tolerance) << "loss";
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = module->parameters()[i].name;
    const at::Tensor expected = reference.tensor("gradient." + name);
    const double difference = relative_difference(outcome.gradients[i], expected);
    EXPECT_LE(difference, reference_tolerance) << name;
    worst = std::max(worst, difference);
  }
  std::printf("  share of the tolerance used: %.3f\n", worst / reference_tolerance);

  const Outcome again = run_stages(*module, weights, batch);
  EXPECT_TRUE(at::equal(again.loss, outcome.loss));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(again.gradients[i], outcome.gradients[i])) << i;
  }
}

inline std::string variant_name(const testing::TestParamInfo<std::string>& test) {
  return std::filesystem::path(test.param).stem().string();
}

}  // namespace artesian::models
