// Proves parameter groups, frozen parameters and steps that reach only some parameters, with
// engines: against AdamW from LibTorch's operators with whole-model autograd; bit for bit over
// placements, budgets, schedules and dtypes; and by the values of frozen parameters after training.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <set>

#include "kernels/cast.h"
#include "tests/support/separate_device.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/torch/adapted_module.h"

namespace artesian::zero3 {
namespace {

/// Norms and biases in a group of their own, as in most recipes.
void group_by_decay(ParameterSpec& parameter) {
  parameter.group = parameter.shape.size() == 1 ? 1 : 0;
}

std::vector<GroupOptions> decay_and_none() {
  return {{}, {.lr = 3e-3, .weight_decay = 0.0, .beta2 = 0.99}};
}

class Groups : public Equality {
 protected:
  Groups() : Equality(tiny) { at::set_num_threads(1); }

  /// Adapts both models.
  void adapt(const std::function<void(ParameterSpec&)>& change) {
    if (plain_.empty()) plain_.swap(modules_);
    modules_.clear();
    for (const auto& module : plain_) {
      modules_.push_back(std::make_unique<AdaptedModule>(*module, change));
    }
  }
  std::unique_ptr<Engine> create(const Choice& run, const Config& config, EngineOptions options) {
    Module& module = module_of(run);
    auto engine = create_patiently(module, config, options);
    EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
    if (!engine.has_value()) return nullptr;
    RandomWeights weights(module.parameters(), 1);
    EXPECT_TRUE((*engine)->initialize(weights).has_value());
    return std::move(engine).value();
  }
  TokenBatch batch_of(std::uint64_t step) const {
    TokenBatch batch(scale.samples, scale.length);
    std::uint64_t draw = 0;
    for (const auto tokens : {batch.ids(), batch.targets()}) {
      for (auto& token : tokens) {
        token = static_cast<std::int64_t>(random_word(93, step, draw++) % scale.vocab);
      }
    }
    return batch;
  }
  /// Returns how many updates each parameter has had, as a checkpoint records them.
  static std::vector<std::uint64_t> counts_of(Engine& engine) {
    const test_support::TemporaryDirectory directory;
    const std::string folder = directory.path() + "/a";
    EXPECT_TRUE(engine.save_checkpoint({.directory = folder}).has_value());
    const auto reader = CheckpointReader::open(system_files(), folder, "");
    EXPECT_TRUE(reader.has_value());
    return (*reader)->manifest().state.parameter_steps;
  }
  static std::vector<float> master_of(Engine& engine, std::uint32_t parameter) {
    std::vector<float> values;
    const auto read = engine.read_master(parameter, [&](std::span<const float> piece) {
      values.insert(values.end(), piece.begin(), piece.end());
      return Result<void>();
    });
    EXPECT_TRUE(read.has_value()) << read.error().to_string();
    return values;
  }
  std::vector<float> initial(const Module& module, std::uint32_t parameter) const {
    std::vector<float> values(module.parameters()[parameter].numel());
    RandomWeights weights(module.parameters(), 1);
    EXPECT_TRUE(weights.read(parameter, 0, values).has_value());
    return values;
  }
  /// Returns the constant values of a frozen parameter in this dtype.
  std::vector<float> stored(const Module& module, std::uint32_t parameter, DType dtype) const {
    std::vector<float> values = initial(module, parameter);
    std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
    static_cast<void>(kernels::narrow(values.data(), bytes.data(), dtype, values.size()));
    kernels::expand(bytes.data(), dtype, values.data(), values.size());
    return values;
  }

  std::vector<std::unique_ptr<Module>> plain_;
};

/// All on NVMe, with the least memory; fp32, one micro-batch.
Choice on_nvme(int head, int dtype = 0) {
  Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, dtype, 0, head};
  run[Masters] = 0;
  return run;
}

/// AdamW over a module's parameters, as leaves of one graph.
class PlainTraining {
 public:
  PlainTraining(Module& module, const OptimizerConfig& adam, std::vector<GroupOptions> groups)
      : module_(module), adam_(adam), groups_(std::move(groups)) {
    RandomWeights weights(module.parameters(), 1);
    for (const ParameterSpec& spec : module.parameters()) {
      at::Tensor leaf = at::empty(spec.shape, at::kFloat);
      EXPECT_TRUE(weights
                      .read(static_cast<std::uint32_t>(leaves_.size()), 0,
                            {leaf.data_ptr<float>(), static_cast<std::size_t>(spec.numel())})
                      .has_value());
      leaves_.push_back(leaf.set_requires_grad(spec.trainable));
      exp_avg_.push_back(at::zeros_like(leaf));
      exp_avg_sq_.push_back(at::zeros_like(leaf));
    }
  }

  double step(const Batch& batch) {
    ++steps_;
    at::Tensor activation = batch.input;
    for (std::size_t stage = 0; stage < module_.stages().size(); ++stage) {
      const StageSpec& spec = module_.stages()[stage];
      std::vector<at::Tensor> parameters;
      for (const auto index : graph_parameters(spec)) parameters.push_back(leaves_[index]);
      if (spec.lookup.has_value()) activation = at::embedding(leaves_[*spec.lookup], batch.input);
      activation = module_.forward(stage, activation, parameters, batch);
    }
    activation.backward();
    const at::NoGradGuard no_grad;
    for (std::size_t index = 0; index < leaves_.size(); ++index) {
      if (leaves_[index].requires_grad()) update(index);
    }
    return activation.item<double>();
  }

  const at::Tensor& leaf(std::size_t index) const { return leaves_[index]; }

 private:
  void update(std::size_t index) {
    const GroupOptions& group = groups_[module_.parameters()[index].group];
    const double lr = group.lr.value_or(adam_.lr);
    const double beta1 = group.beta1.value_or(adam_.beta1);
    const double beta2 = group.beta2.value_or(adam_.beta2);
    const at::Tensor gradient = leaves_[index].grad();
    exp_avg_[index].mul_(beta1).add_(gradient, 1 - beta1);
    exp_avg_sq_[index].mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const double correction1 = 1 - std::pow(beta1, steps_);
    const double correction2 = 1 - std::pow(beta2, steps_);
    const at::Tensor denominator =
        exp_avg_sq_[index].sqrt().div(std::sqrt(correction2)).add(group.eps.value_or(adam_.eps));
    leaves_[index].mul_(1 - lr * group.weight_decay.value_or(adam_.weight_decay));
    leaves_[index].addcdiv_(exp_avg_[index], denominator, -lr / correction1);
    leaves_[index].mutable_grad().reset();
  }

  Module& module_;
  const OptimizerConfig adam_;
  const std::vector<GroupOptions> groups_;
  std::vector<at::Tensor> leaves_, exp_avg_, exp_avg_sq_;
  int steps_ = 0;
};

TEST_F(Groups, AndAFrozenBlockTrainAsAdamWOfLibTorch) {
  adapt([](ParameterSpec& parameter) {
    group_by_decay(parameter);
    parameter.trainable = parameter.name.find("h.0.") == std::string::npos;
  });
  for (const int head : {0, 1}) {
    SCOPED_TRACE(head == 0 ? "tied" : "untied");
    const Choice run = on_nvme(head);
    Config config = config_of(run);
    config.gradient_clipping = 0.0;
    config.optimizer.eps = 1e-5;  // else a key's bias follows the rounding of a zero gradient
    auto engine = create(run, config, {.groups = decay_and_none()});
    ASSERT_NE(engine, nullptr);
    PlainTraining plain(module_of(run), config.optimizer, decay_and_none());
    for (std::uint64_t step = 0; step < 20; ++step) {
      const TokenBatch batch = batch_of(step);
      const double expected = plain.step(batch.batch());
      const double loss = engine->forward(batch.batch()).value();
      EXPECT_NEAR(loss, expected, expected * 1e-5) << "step " << step;
      ASSERT_TRUE(engine->backward().has_value());
      ASSERT_TRUE(engine->step().has_value());
    }
    const auto& parameters = module_of(run).parameters();
    const std::vector<std::uint64_t> counts = counts_of(*engine);
    for (std::uint32_t index = 0; index < parameters.size(); ++index) {
      const std::vector<float> values = master_of(*engine, index);
      const at::Tensor got = at::tensor(values).view(parameters[index].shape);
      const at::Tensor& expected = plain.leaf(index).detach();
      const double error = (got - expected).norm().item<double>();
      EXPECT_LE(error, 1e-5 * expected.norm().item<double>()) << parameters[index].name;
      EXPECT_EQ(counts[index], parameters[index].trainable ? 20u : 0u);
      const bool moved = values != initial(module_of(run), index);
      EXPECT_EQ(moved, parameters[index].trainable) << parameters[index].name;
    }
    ASSERT_TRUE(engine->close().has_value());
  }
}

// Random parameters are frozen and in groups, so that borders cut units anywhere.
TEST_F(Groups, AndFrozenParametersChangeNoBitWithTheirPlace) {
  int split = 0;
  for (std::uint64_t seed = 0; seed < 40 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    adapt([&](ParameterSpec& parameter) {
      const std::uint64_t word = random_word(94, seed, std::hash<std::string>()(parameter.name));
      parameter.trainable = word % 3 != 0 || parameter.name.ends_with("ln_f.bias");
      parameter.group = static_cast<std::uint32_t>(word / 8 % 3);
    });
    EngineOptions options{.groups = {{}, {.lr = 3e-3, .weight_decay = 0.0}, {.beta1 = 0.8}}};
    Choice run = random_choice(95, seed);
    run[SwapFolders] %= 2;
    Choice reference{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]};
    reference[Masters] = 1;
    const Outcome expected = train(reference, config_of(reference), options);
    options.share_under_backward = seed % 2 == 0 ? 1.0 : 0.0;
    const Outcome outcome = train(run, config_of(run), options);
    split += outcome.split_masters ? 1 : 0;
    expect_same(outcome, expected);
  }
  EXPECT_GT(split, 0);
}

TEST_F(Groups, FrozenParametersStayAsTheyWereStored) {
  for (const int dtype : {0, 1, 2}) {
    for (const int head : {0, 1}) {
      SCOPED_TRACE(std::to_string(dtype) + (head == 0 ? " tied" : " untied"));
      // All except a block: also the look-up table, the head and persistent parameters.
      adapt([](ParameterSpec& parameter) {
        parameter.trainable = parameter.name.find("h.1.mlp") != std::string::npos;
      });
      Choice run = on_nvme(head, dtype);
      run[Persistence] = 1;
      Config config = config_of(run);
      config.loss_scale.loss_scale = 8.0;
      auto engine = create(run, config, {});
      ASSERT_NE(engine, nullptr);
      for (std::uint64_t step = 0; step < 4; ++step) {
        ASSERT_TRUE(engine->forward(batch_of(step).batch()).has_value());
        ASSERT_TRUE(engine->backward().has_value());
        ASSERT_TRUE(engine->step().has_value());
      }
      const Module& module = module_of(run);
      for (std::uint32_t index = 0; index < module.parameters().size(); ++index) {
        const bool same = master_of(*engine, index) == stored(module, index, config.param_dtype);
        EXPECT_EQ(same, !module.parameters()[index].trainable) << module.parameters()[index].name;
      }
      ASSERT_TRUE(engine->close().has_value());
    }
  }
}

// On a device with memory of its own, with homes there, on the host and on NVMe.
TEST_F(Groups, AndFrozenParametersOnASeparateDeviceChangeNoBit) {
  using test_support::SeparateDevice;
  adapt([](ParameterSpec& parameter) {
    group_by_decay(parameter);
    parameter.trainable = parameter.name.find("h.0.") == std::string::npos &&
                          parameter.name.find("wpe") == std::string::npos;
  });
  for (const int dtype : {0, 1, 2}) {
    Choice reference{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, dtype, 1, 1};
    reference[Masters] = 1;
    separate_device = false;
    EngineOptions options{.groups = decay_and_none()};
    const Outcome expected = train(reference, config_of(reference), options);
    separate_device = true;
    for (const int home : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(dtype) + " at " + std::to_string(home));
      SeparateDevice device(SeparateDevice::Order::Late, 3);
      Choice run{home, home, home == 0 ? 2 : 1, 0, 1, 1, 1, 1, 1, 1, 1, dtype, 1, 1};
      options.backend = &device;
      expect_same(train(run, config_of(run), options), expected);
    }
  }
}

/// Leaves its first block out.
class LeavesOut final : public Module {
 public:
  explicit LeavesOut(Module& module) : module_(module) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return module_.parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return module_.stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    if (stage == 1 && steps % 2 == 1) return input;
    return module_.forward(stage, input, parameters, batch);
  }
  std::uint64_t steps = 0;

 private:
  Module& module_;
};

TEST_F(Groups, WhatAStepNeverReachesGetsZerosOrIsSkipped) {
  for (const Unreached unreached : {Unreached::GetsZeros, Unreached::IsSkipped}) {
    const bool skips = unreached == Unreached::IsSkipped;
    SCOPED_TRACE(skips ? "skipped" : "zeros");
    for (const int dtype : {0, 1, 2}) {
      std::string expected;
      for (const bool nvme : {false, true}) {
        Choice run = on_nvme(1, dtype);
        if (!nvme) run = {0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, dtype, 0, 1};
        LeavesOut module(module_of(run));
        Config config = config_of(run);
        config.loss_scale.loss_scale = 8.0;
        auto engine = create_patiently(module, config, {.unreached = unreached}).value();
        RandomWeights weights(module.parameters(), 1);
        ASSERT_TRUE(engine->initialize(weights).has_value());
        const std::uint32_t left_out = module.stages()[1].parameters.back();
        const std::uint32_t other = module.stages()[2].parameters.back();
        for (module.steps = 0; module.steps < 6; ++module.steps) {
          const auto before = master_of(*engine, left_out);
          const TokenBatch batch = batch_of(module.steps);
          ASSERT_TRUE(engine->forward(batch.batch()).has_value());
          ASSERT_TRUE(engine->backward().has_value());
          ASSERT_TRUE(engine->step().has_value());
          const bool stays = skips && module.steps % 2 == 1;
          EXPECT_EQ(master_of(*engine, left_out) == before, stays) << module.steps;
        }
        const std::vector<std::uint64_t> counts = counts_of(*engine);
        EXPECT_EQ(counts[left_out], skips ? 3u : 6u);
        EXPECT_EQ(counts[other], 6u);
        const std::string digest = engine->digest().value();
        if (nvme) {
          EXPECT_EQ(digest, expected);
        }
        expected = digest;
        ASSERT_TRUE(engine->close().has_value());
      }
    }
  }
}

TEST_F(Groups, ConstantsMayComeWithEachStep) {
  const Choice run = on_nvme(1);
  adapt(group_by_decay);
  const Config config = config_of(run);
  std::set<std::string> digests;
  for (const bool with_steps : {false, true}) {
    EngineOptions options;
    options.groups = with_steps ? std::vector<GroupOptions>(2) : decay_and_none();
    const auto engine = create(run, config, options);
    StepRequest request;
    if (with_steps) {
      request.groups =
          make_step_constants(config.optimizer, decay_and_none(), config.optimizer.lr, 1.0).groups;
    }
    for (std::uint64_t step = 0; step < 3; ++step) {
      const TokenBatch batch = batch_of(step);
      ASSERT_TRUE(engine->forward(batch.batch()).has_value());
      // Without them it has no constants yet with which to begin the update.
      ASSERT_TRUE(engine->backward().has_value());
      const auto result = engine->step(request);
      ASSERT_TRUE(result.has_value()) << result.error().to_string();
      EXPECT_EQ(result->lr, config.optimizer.lr);
    }
    digests.insert(engine->digest().value());
    ASSERT_TRUE(engine->close().has_value());
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST_F(Groups, ThatComeWithAStepAndCannotBeAreRefused) {
  const Choice run = on_nvme(1);
  adapt(group_by_decay);
  const auto engine = create(run, config_of(run), {.groups = decay_and_none()});
  const TokenBatch batch = batch_of(0);
  ASSERT_TRUE(engine->forward(batch.batch()).has_value());
  ASSERT_TRUE(engine->backward().has_value());
  const GroupStep good{1e-3, 0.0, 0.9, 0.99, 1e-8};
  const GroupStep bad{1e-3, 0.0, 0.9, 1.0, 1e-8};
  const auto few = engine->step({.groups = {good}});
  ASSERT_FALSE(few.has_value());
  EXPECT_EQ(few.error().message, "groups: got constants of 1, allowed 2");
  const auto wrong = engine->step({.groups = {good, bad}});
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().message, "groups[1].beta2: got 1, allowed 0 to 1 exclusive");
  EXPECT_TRUE(engine->step({.groups = {good, good}}).has_value());
}

TEST_F(Groups, ThatCannotBeAreRefused) {
  const Choice run = on_nvme(0);
  adapt([](ParameterSpec& parameter) { parameter.trainable = false; });
  const auto frozen = Engine::create(module_of(run), config_of(on_nvme(0)), {});
  ASSERT_FALSE(frozen.has_value());
  EXPECT_EQ(frozen.error().code, ErrorCode::Invalid);
  EXPECT_NE(frozen.error().message.find("there is nothing to train"), std::string::npos);
  EXPECT_EQ(frozen.error().message.find('\n'), std::string::npos);
  adapt(group_by_decay);
  const auto none = Engine::create(module_of(run), config_of(run), {});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().message.find("groups: got group 1 of parameter \""), 0u)
      << none.error().message;
}

}  // namespace
}  // namespace artesian::zero3
