// For tests of UnitUses: a model of functions over torch tensors whose state is in a StepCore, on
// NVMe, and the same model in plain torch, whose gradients are passed to a StepCore unchanged. Both
// end in a digest of master weights and moments, which are equal if and only if all gradients had
// the same bits.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"
#include "tests/zero3/core_on_nvme.h"
#include "zero3/torch/parameter_tensors.h"
#include "zero3/torch/tensor_weights.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;  // of a stage
/// How stages are called: plainly, or between enter and leave.
using Call = std::function<Tensors(std::uint32_t, const Tensors&, const Function&)>;

struct UsesCase {
  DType dtype = DType::Float32;
  std::uint64_t accumulation = 1;
  std::uint64_t persistent = 0;  // elements: stage3_param_persistence_threshold
  bool under_backward = false;   // units are updated there, once they seem to be final
  double clipping = 0.0;
};

inline Tensors values_for(const ModelShape& shape) {
  auto generator = at::detail::createCPUGenerator(7);
  Tensors values;
  for (const ParameterSpec& spec : shape.parameters) {
    values.push_back(at::randn(spec.shape, generator) * 0.3);
  }
  return values;
}

/// A core that holds only the shape's weights.
class CoreOnDisk {
 public:
  explicit CoreOnDisk(const ModelShape& shape, const UsesCase& run = {})
      : config_(config_on_nvme(directory_.path())) {
    config_.accumulation_steps = run.accumulation;
    config_.param_dtype = config_.grad_accum_dtype = run.dtype;
    config_.gradient_clipping = run.clipping;
    config_.zero.param_persistence_threshold = run.persistent;
    StepCoreOptions options = options_on_nvme(shape, config_);
    options.hooked = run.under_backward;
    if (run.under_backward) options.share_under_backward = 1.0;
    auto made = StepCore::create(shape, config_, options, executor_);
    EXPECT_EQ(error_of(made), "");
    core = std::move(made).value();
    values = values_for(shape);
    auto weights = TensorWeights::create(shape.parameters, values);
    EXPECT_EQ(error_of(weights), "");
    EXPECT_EQ(error_of(core->initialize(*weights, {})), "");
  }
  std::string digest() { return core->digest().value(); }

  Tensors values;
  std::unique_ptr<StepCore> core;

 protected:
  test_support::TemporaryDirectory directory_;
  SerialExecutor executor_;
  Config config_;
};

/// Plain autograd over plain tensors. Each gradient is added once.
class PlainModel : public CoreOnDisk {
 public:
  explicit PlainModel(const ModelShape& shape, const UsesCase& run = {}) : CoreOnDisk(shape, run) {
    read_values();
  }
  /// Calls all stages with `values`, which have gradients afterwards.
  void micro_batch(const std::function<void()>& forward_and_backward) {
    ASSERT_EQ(error_of(core->begin_forward(1)), "");
    const double loss[] = {1.0};
    forward_and_backward();
    ASSERT_EQ(error_of(core->end_forward(loss)), "");
    ASSERT_EQ(error_of(core->begin_backward({.last = false})), "");
    for (std::uint32_t parameter = 0; parameter < values.size(); ++parameter) {
      const at::Tensor gradient = std::exchange(values[parameter].mutable_grad(), at::Tensor());
      if (!gradient.defined()) continue;
      const std::uint32_t unit = core->layout().places[parameter].unit;
      const at::Tensor given =
          gradient.to(scalar_type(core->gradients().added_dtype(unit))).contiguous();
      const ParameterGradient added[] = {{parameter, given.const_data_ptr()}};
      ASSERT_EQ(error_of(core->add(unit, added)), "");
    }
    ASSERT_EQ(error_of(core->end_backward(0)), "");
  }
  void step() {
    ASSERT_EQ(error_of(core->step({.micro_batches = core->micro_batches()})), "");
    read_values();
  }

 private:
  /// Reads the weights as a forward sees them.
  void read_values() {
    for (std::uint32_t parameter = 0; parameter < values.size(); ++parameter) {
      at::Tensor read = at::empty_like(values[parameter]);
      std::int64_t at = 0;
      const auto sink = [&](std::span<const float> piece) -> Result<void> {
        std::copy(piece.begin(), piece.end(), read.data_ptr<float>() + at);
        at += static_cast<std::int64_t>(piece.size());
        return {};
      };
      ASSERT_EQ(error_of(core->read_state(parameter, StateKind::Master, sink)), "");
      const auto stored = scalar_type(config_.param_dtype);
      values[parameter] = read.to(stored).to(at::kFloat).requires_grad_(true);
    }
  }
};

/// The same model with its state in tiers: stages are called between enter and leave.
class HookedModel : public CoreOnDisk {
 public:
  explicit HookedModel(const ModelShape& shape, const UsesCase& run = {}) : CoreOnDisk(shape, run) {
    if (run.under_backward) {
      groups = make_step_constants(config_.optimizer, {}, config_.optimizer.lr, 1.0).groups;
    }
    for (const at::Tensor& value : values) {
      parameters.push_back(value.clone().requires_grad_(true));
    }
    auto adopted =
        ParameterTensors::adopt(shape.parameters, core->placement(), parameters, /*others=*/{});
    EXPECT_EQ(error_of(adopted), "");
    tensors = std::move(adopted).value();
    uses = std::make_unique<UnitUses>(*core, *tensors, [this] { return groups; });
  }
  Tensors call(std::uint32_t stage, const Tensors& inputs, const Function& function) {
    const Pass pass = at::GradMode::is_enabled() ? Pass::Train : Pass::Evaluate;
    EXPECT_EQ(error_of(uses->enter(stage, pass)), "");
    Tensors outputs = function(inputs);
    EXPECT_EQ(error_of(uses->leave(stage, outputs)), "");
    return outputs;
  }
  /// The same as a function.
  Call caller() {
    return [this](std::uint32_t stage, const Tensors& inputs, const Function& function) {
      return call(stage, inputs, function);
    };
  }
  void step() {
    const auto result = uses->step({.groups = groups});
    ASSERT_EQ(error_of(result), "");
    updated_early += result->updated_under_backward;
    taken_back += result->taken_back ? 1 : 0;
  }

  Tensors parameters;
  std::vector<GroupStep> groups;    // by which steps are made; none: the config's
  std::uint64_t updated_early = 0;  // units, in all steps
  std::uint64_t taken_back = 0;     // steps
  std::unique_ptr<ParameterTensors> tensors;
  std::unique_ptr<UnitUses> uses;
};

inline void backward(const at::Tensor& loss, bool retain = false) {
  torch::autograd::backward({loss}, {at::ones_like(loss)}, retain);
}

}  // namespace artesian::zero3
