// Proves what a trainer with a model and a loop of its own may rely on. Any module and any tensors
// work. Losses are those of plain LibTorch training. A call out of order and a batch that does not
// fit are errors that change nothing. An evaluation, at any point, changes no bit and does not
// disturb the training's look-ahead. Micro-batches passed together have the bits of one after the
// other, and gather parameters once a group.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <set>

#include "tests/support/temporary_directory.h"
#include "tests/zero3/budgets.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/tensor_weights.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t width = 64;
constexpr std::int64_t inputs = 8;
constexpr std::int64_t layers = 4;

/// A regression by a multi-layer perceptron, without tokens. Stage i has layer i. The last one
/// returns the mean squared error, or, without targets, the outputs.
class Perceptron final : public Module {
 public:
  Perceptron() {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::string name = "layer." + std::to_string(layer);
      const std::int64_t in = layer == 0 ? inputs : width;
      const std::int64_t out = layer + 1 == layers ? 1 : width;
      const auto first = static_cast<std::uint32_t>(parameters_.size());
      parameters_.push_back({.name = name + ".weight",
                             .shape = {out, in},
                             .standard_deviation = 1.0 / std::sqrt(static_cast<double>(in))});
      parameters_.push_back({.name = name + ".bias", .shape = {out}, .initial = Initial::Zeros});
      stages_.push_back({.name = name, .parameters = {first, first + 1}, .lookup = {}});
    }
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    const at::Tensor linear = at::linear(input, parameters[0], parameters[1]);
    if (stage + 1 < stages_.size()) return at::tanh(linear);
    return batch.targets.defined() ? at::mse_loss(linear, batch.targets) : linear;
  }

 private:
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

/// Stages given as functions.
class Stages final : public Module {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&, const std::vector<at::Tensor>&)>;
  Stages(std::vector<ParameterSpec> parameters, std::vector<StageSpec> stages,
         std::vector<Forward> forwards)
      : parameters_(std::move(parameters)),
        stages_(std::move(stages)),
        forwards_(std::move(forwards)) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch&) override {
    return forwards_[stage](input, parameters);
  }

 private:
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
  std::vector<Forward> forwards_;
};

struct Sample {
  at::Tensor input;
  at::Tensor targets;
};

/// Batch `number` of the regression: a smooth function of random inputs.
Sample sample(std::int64_t number) {
  const at::Tensor grid = at::arange(16 * inputs, at::kFloat).reshape({16, inputs});
  const at::Tensor input = at::sin(grid * 12.9898 + static_cast<double>(number) * 78.233);
  return {input, at::sin(input.sum(1, /*keepdim=*/true))};
}

class Trainer : public testing::Test {
 protected:
  Trainer() { at::set_num_threads(1); }  // tiny work: threads would only wait for each other

  Config config() const {
    Config config;
    config.micro_batch_size = 16;
    config.accumulation_steps = 2;
    config.gradient_clipping = 0;
    config.zero.stage = 3;
    config.zero.offload_param = {
        .device = Offload::Nvme, .nvme_paths = {directory_.path()}, .max_in_cpu = 0};
    config.zero.offload_optimizer = {.device = Offload::Nvme, .nvme_paths = {directory_.path()}};
    config.zero.param_persistence_threshold = 0;
    config.artesian.device_memory = std::uint64_t{1} << 20;
    return config;
  }
  /// All except gradients on NVMe, unless the config sets the host memory.
  std::unique_ptr<Engine> engine(Module& module, Config config) {
    if (!config.artesian.host_memory.has_value()) {
      config.artesian.host_memory = host_budget_for_gradients(module, config);
    }
    auto made = Engine::create(module, config, {.spare_device = false});
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    RandomWeights weights(module.parameters(), 1);
    const auto initialized = (*made)->initialize(weights);
    EXPECT_TRUE(initialized.has_value()) << initialized.error().to_string();
    return std::move(made).value();
  }

  test_support::TemporaryDirectory directory_;
};

std::string error_of(const auto& result) {
  return result.has_value() ? "" : result.error().to_string();
}

/// Adam as in the paper, in plain LibTorch.
class PlainTraining {
 public:
  explicit PlainTraining(const std::vector<ParameterSpec>& specs) {
    RandomWeights weights(specs, 1);
    for (std::uint32_t index = 0; index < specs.size(); ++index) {
      at::Tensor tensor = at::empty(specs[index].shape, at::kFloat);
      EXPECT_TRUE(weights.read(index, 0, {tensor.data_ptr<float>(), specs[index].numel()}));
      parameters.push_back(tensor.set_requires_grad(true));
      first_.push_back(at::zeros_like(tensor));
      second_.push_back(at::zeros_like(tensor));
    }
  }
  void update(const std::vector<at::Tensor>& gradients, double learning_rate) {
    const at::NoGradGuard no_grad;
    ++steps_;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      first_[i].mul_(0.9).add_(gradients[i], 0.1);
      second_[i].mul_(0.999).addcmul_(gradients[i], gradients[i], 0.001);
      const at::Tensor root = (second_[i] / (1 - std::pow(0.999, steps_))).sqrt() + 1e-8;
      parameters[i].addcdiv_(first_[i], root, -learning_rate / (1 - std::pow(0.9, steps_)));
    }
  }

  std::vector<at::Tensor> parameters;

 private:
  std::vector<at::Tensor> first_, second_;
  int steps_ = 0;
};

TEST_F(Trainer, AModelWithoutTokensLearnsAsInPlainTraining) {
  Perceptron module;
  const Config settings = config();
  const auto trained = engine(module, settings);
  PlainTraining plain(module.parameters());
  double first = 0.0;
  double last = 0.0;
  for (std::int64_t step = 0; step < 40; ++step) {
    std::vector<at::Tensor> sums;
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const Sample data = sample(step * 2 + micro);
      const Batch batch{data.input, data.targets};
      at::Tensor activation = data.input;
      for (std::size_t stage = 0; stage < module.stages().size(); ++stage) {
        activation =
            module.forward(stage, activation,
                           {plain.parameters[2 * stage], plain.parameters[2 * stage + 1]}, batch);
      }
      const auto gradients = torch::autograd::grad({activation / 2}, plain.parameters);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        micro == 0 ? sums.push_back(gradients[i]) : static_cast<void>(sums[i].add_(gradients[i]));
      }
      const auto loss = trained->forward(batch);
      ASSERT_EQ(error_of(loss), "");
      EXPECT_NEAR(*loss, activation.item<double>(), 1e-4 * activation.item<double>());
      data.input.fill_(9);  // the engine has its copy
      data.targets.fill_(9);
      ASSERT_EQ(error_of(trained->backward()), "");
    }
    plain.update(sums, settings.optimizer.lr);
    ASSERT_EQ(error_of(trained->step()), "");
    ASSERT_EQ(error_of(trained->finish_update()), "");
    const auto result = trained->take_completed();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->tokens, 32u);
    EXPECT_GT(result->bytes_nvme_read, 0u);
    EXPECT_GT(result->bytes_nvme_write, 0u);
    (step == 0 ? first : last) = result->loss;
  }
  EXPECT_LT(last, first / 4);
}

TEST_F(Trainer, CallsOutOfOrderAreErrorsThatNameTheOrder) {
  Perceptron module;
  const Sample data = sample(0);
  const Batch batch{data.input, data.targets};
  auto made = Engine::create(module, config(), {});
  ASSERT_EQ(error_of(made), "");
  Engine& trained = **made;
  const auto says = [](const std::string& error, const std::string& call, const std::string& text) {
    EXPECT_EQ(error.rfind(call + "(): out of order: ", 0), 0u) << error;
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  says(error_of(trained.forward(batch)), "forward", "initialize() first");
  says(error_of(trained.evaluate(batch)), "evaluate", "initialize() first");
  says(error_of(trained.digest()), "digest", "initialize() first");
  RandomWeights weights(module.parameters(), 1);
  ASSERT_EQ(error_of(trained.initialize(weights)), "");
  says(error_of(trained.initialize(weights)), "initialize", "has its weights");
  says(error_of(trained.backward()), "backward", "forward() first");
  says(error_of(trained.step()), "step", "got 0 micro-batches since the last step, allowed 2");
  ASSERT_EQ(error_of(trained.forward(batch)), "");
  says(error_of(trained.forward(batch)), "forward", "backward() first");
  says(error_of(trained.step()), "step", "backward() first");
  ASSERT_EQ(error_of(trained.backward()), "");
  says(error_of(trained.backward()), "backward", "forward() first");
  says(error_of(trained.step()), "step", "got 1 micro-batches");
  ASSERT_EQ(error_of(trained.forward(batch)), "");
  ASSERT_EQ(error_of(trained.backward()), "");
  says(error_of(trained.forward(batch)), "forward", "step() first");
  ASSERT_EQ(error_of(trained.step()), "");
  ASSERT_EQ(error_of(trained.close()), "");
  EXPECT_EQ(error_of(trained.forward(batch)), "the engine is closed; create another one");
  EXPECT_EQ(error_of(trained.close()), "");
}

/// A product with a small matrix, and a table [8, 4] whose gradient the test gives.
class GivesParts final : public Module {
 public:
  struct Part {
    std::size_t position;
    std::int64_t first;
    std::int64_t count;
  };
  explicit GivesParts(std::vector<Part> parts) : parts_(std::move(parts)) {
    parameters_ = {{.name = "matrix", .shape = {1, inputs}},
                   {.name = "table", .shape = {8, 4}, .tiled = true}};
    stages_ = {{.name = "all", .parameters = {0, 1}, .lookup = {}}};
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    const at::Tensor product = at::linear(input, parameters[0]);
    const auto give = [parts = parts_, sink = batch.gradients](const at::Tensor&) {
      for (const Part& part : parts) sink->add(part.position, part.first, at::ones({part.count}));
    };
    if (product.requires_grad()) product.register_hook(give);
    return product.mean();
  }

 private:
  std::vector<Part> parts_;
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

TEST_F(Trainer, PartsOfAGradientThatDoNotFitAreErrorsThatSayWhy) {
  const auto error_with = [&](std::vector<GivesParts::Part> parts) {
    GivesParts module(std::move(parts));
    const auto trained = engine(module, config());
    const Sample data = sample(0);
    EXPECT_EQ(error_of(trained->forward({data.input, data.targets})), "");
    return error_of(trained->backward());
  };
  const auto says = [](const std::string& error, const std::string& text) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  EXPECT_EQ(error_with({}), "");
  EXPECT_EQ(error_with({{1, 16, 16}, {1, 0, 16}}), "");
  says(error_with({{0, 0, 8}}), "parameter 0 of this stage is not tiled");
  says(error_with({{2, 0, 8}}), "parameter 2 of this stage is not tiled");
  says(error_with({{1, 30, 4}}), "4 elements from 30 on, of a parameter with 32");
  says(error_with({{1, -1, 4}}), "4 elements from -1 on, of a parameter with 32");
  says(error_with({{1, 0, 16}}), R"(got 16 of the 32 elements of the gradient of "table")");
  says(error_with({{1, 0, 32}, {1, 0, 32}}), "got 64 of the 32 elements");
}

/// The outcome of a training, compared by bits.
struct Outcome {
  std::vector<std::uint64_t> losses;
  std::vector<std::uint64_t> norms;
  std::vector<std::uint64_t> demands;
  std::vector<std::uint64_t> reads;
  std::string digest;
};

void record_step(const StepResult& result, Outcome& outcome) {
  outcome.norms.push_back(std::bit_cast<std::uint64_t>(result.grad_norm));
  outcome.demands.push_back(result.fetch_demand);
  outcome.reads.push_back(result.bytes_nvme_read);
}

using Interruption = std::function<void(Engine&, std::int64_t step, int place)>;
enum Place : int { BeforeStep, BeforeForward, BeforeBackward, AfterBackward };

Outcome train(Engine& trained, const Interruption& interrupt) {
  Outcome outcome;
  for (std::int64_t step = 0; step < 6; ++step) {
    interrupt(trained, step, BeforeStep);
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const Sample data = sample(step * 2 + micro);
      interrupt(trained, step, BeforeForward);
      const auto loss = trained.forward({data.input, data.targets});
      EXPECT_EQ(error_of(loss), "");
      interrupt(trained, step, BeforeBackward);
      EXPECT_EQ(error_of(trained.backward()), "");
      interrupt(trained, step, AfterBackward);
      outcome.losses.push_back(std::bit_cast<std::uint64_t>(*loss));
    }
    const auto result = trained.step();
    EXPECT_EQ(error_of(result), "");
    record_step(*result, outcome);
  }
  outcome.digest = trained.digest().value();
  EXPECT_EQ(error_of(trained.close()), "");
  return outcome;
}

void expect_same_bits(const Outcome& got, const Outcome& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  EXPECT_EQ(got.digest, expected.digest);
}

TEST_F(Trainer, AnEvaluationChangesNoBitAndCostsNoLookAhead) {
  Perceptron module;
  for (const std::uint64_t distance : {0, 1'000'000}) {  // next to nothing is kept; all
    Config settings = config();
    settings.zero.max_reuse_distance = distance;
    const Outcome expected = train(*engine(module, settings), [](auto&&...) {});
    for (const int where : {BeforeStep, BeforeForward, BeforeBackward, AfterBackward}) {
      SCOPED_TRACE("distance " + std::to_string(distance) + ", place " + std::to_string(where));
      const Sample data = sample(100);
      int evaluations = 0;
      const auto evaluate = [&](Engine& trained, std::int64_t, int place) {
        if (place != where) return;
        const auto loss = trained.evaluate({data.input, data.targets});
        ASSERT_EQ(error_of(loss), "");
        EXPECT_FALSE(loss->requires_grad());
        ++evaluations;
      };
      const Outcome outcome = train(*engine(module, settings), evaluate);
      EXPECT_GE(evaluations, 6);
      expect_same_bits(outcome, expected);
      for (std::size_t step = 1; step < outcome.demands.size(); ++step) {
        EXPECT_EQ(outcome.demands[step], 0u) << "step " << step;
      }
    }
  }
}

TEST_F(Trainer, WhatAnEvaluationReadsIsNotOfTheStep) {
  Perceptron module;
  Config settings = config();
  settings.zero.max_live_parameters = 0;         // nothing is fetched ahead or kept
  settings.artesian.speculative_update = false;  // an evaluation would roll it back
  // An evaluation needs the complete update, so forward reads parameters that the update would have
  // passed to it.
  const auto update = [](Engine& trained, std::int64_t, int) {
    EXPECT_EQ(error_of(trained.finish_update()), "");
  };
  const Outcome expected = train(*engine(module, settings), update);
  const auto evaluate = [&](Engine& trained, std::int64_t, int) {
    const Sample data = sample(100);
    EXPECT_EQ(error_of(trained.evaluate({data.input, data.targets})), "");
  };
  const Outcome outcome = train(*engine(module, settings), evaluate);
  EXPECT_EQ(outcome.reads, expected.reads);
  EXPECT_EQ(outcome.demands, expected.demands);
}

TEST_F(Trainer, AnEvaluationGivesWhatForwardGives) {
  Perceptron module;
  const auto trained = engine(module, config());
  const Sample data = sample(3);
  const auto evaluated = trained->evaluate({data.input, data.targets});
  ASSERT_EQ(error_of(evaluated), "");
  const auto loss = trained->forward({data.input, data.targets});
  ASSERT_EQ(error_of(loss), "");
  EXPECT_EQ(evaluated->item<double>(), *loss);
  const auto outputs = trained->evaluate({data.input, at::Tensor()});
  ASSERT_EQ(error_of(outputs), "");
  EXPECT_NEAR(at::mse_loss(*outputs, data.targets).item<double>(), *loss, 1e-6);
}

TEST_F(Trainer, ABatchThatDoesNotFitChangesNothing) {
  Perceptron module;
  Config settings = config();
  settings.zero.max_reuse_distance = 0;
  const Outcome expected = train(*engine(module, settings), [](auto&&...) {});
  int refused = 0;
  const auto try_bad_batches = [&](Engine& trained, std::int64_t step, int place) {
    if (place != BeforeForward || (step != 0 && step != 2)) return;
    const Sample data = sample(100);
    const at::Tensor narrow = data.input.narrow(1, 0, inputs - 1);
    const at::Tensor wide = data.targets.expand({16, 16}).narrow(0, 0, 3);
    const at::Tensor none;
    for (const Batch& batch :
         {Batch{narrow, data.targets}, Batch{data.input, wide}, Batch{none, wide},
          Batch{data.input, none}}) {  // the last: without a loss, [16, 1] outputs
      const auto loss = trained.forward(batch);
      EXPECT_FALSE(loss.has_value());
      EXPECT_EQ(loss.error().code, ErrorCode::Invalid) << error_of(loss);
      ++refused;
    }
    EXPECT_NE(error_of(trained.evaluate({narrow, data.targets})).find("stage layer.0: "),
              std::string::npos);
    EXPECT_NE(error_of(trained.backward()).find("out of order"), std::string::npos);
  };
  const Outcome outcome = train(*engine(module, settings), try_bad_batches);
  expect_same_bits(outcome, expected);
  for (const std::size_t step : {1, 3, 4, 5}) {  // the traces survive, too
    EXPECT_EQ(outcome.demands[step], 0u) << "step " << step;
  }
  EXPECT_EQ(refused, 16);
}

ParameterSpec vector_of(const std::string& name) {
  return {.name = name, .shape = {width}};
}

/// Six steps of eight micro-batches, passed together or one by one.
Outcome train_eight(Engine& trained, bool together) {
  Outcome outcome;
  for (std::int64_t step = 0; step < 6; ++step) {
    std::vector<Sample> samples;
    std::vector<Batch> batches;
    for (std::int64_t micro = 0; micro < 8; ++micro) samples.push_back(sample(step * 8 + micro));
    for (const Sample& each : samples) batches.push_back({each.input, each.targets});
    std::vector<double> losses;
    if (together) {
      auto made = trained.forward_backward(batches);
      EXPECT_EQ(error_of(made), "");
      losses = std::move(made).value();
    } else {
      for (const Batch& batch : batches) {
        losses.push_back(trained.forward(batch).value());
        EXPECT_EQ(error_of(trained.backward()), "");
      }
    }
    for (const double loss : losses) outcome.losses.push_back(std::bit_cast<std::uint64_t>(loss));
    EXPECT_EQ(trained.micro_batches(), 8u);
    const auto result = trained.step();
    EXPECT_EQ(error_of(result), "");
    EXPECT_EQ(result->tokens, 8 * 16u);
    record_step(*result, outcome);
  }
  outcome.digest = trained.digest().value();
  EXPECT_EQ(error_of(trained.close()), "");
  return outcome;
}

/// Eight micro-batches a step. Every access to a unit fetches it.
Config eight_micro_batches(Config config) {
  track_activations();  // else a group is one
  config.accumulation_steps = 8;
  config.zero.max_live_parameters = 0;
  config.zero.max_reuse_distance = 0;
  config.artesian.speculative_update = false;  // its share, and so bytes, depend on time
  return config;
}

TEST_F(Trainer, MicroBatchesTogetherHaveTheSameBitsAndGatherOnceAGroup) {
  Perceptron module;
  Config settings = eight_micro_batches(config());
  const Outcome expected = train_eight(*engine(module, settings), /*together=*/false);
  std::set<std::uint64_t> groups;
  for (std::uint64_t memory = 1; memory < std::uint64_t{1} << 20; memory += memory / 4 + 1) {
    settings.artesian.activation_memory = memory;
    const Outcome outcome = train_eight(*engine(module, settings), /*together=*/true);
    expect_same_bits(outcome, expected);
    ASSERT_EQ(outcome.demands.back() * 8 % expected.demands.back(), 0u);
    groups.insert(outcome.demands.back() * 8 / expected.demands.back());
    for (const std::size_t step : {1, 2, 3, 4, 5}) {  // in the first, one ran alone
      EXPECT_EQ(outcome.demands[step], outcome.demands.back());
      EXPECT_EQ(outcome.reads[step], outcome.reads.back());
    }
  }
  EXPECT_EQ(groups, (std::set<std::uint64_t>{1, 2, 3, 4, 8}));  // of 8, 4, 3, 2 and 1 at once
}

TEST_F(Trainer, OneBadBatchOfSeveralLeavesTheOthersOfItsGroupOut) {
  Perceptron module;
  Config settings = eight_micro_batches(config());
  const Outcome expected = train_eight(*engine(module, settings), /*together=*/false);
  const auto trained = engine(module, settings);
  const Sample good = sample(0);
  const Sample second = sample(1);
  const at::Tensor narrow = good.input.narrow(1, 0, inputs - 1);
  const at::Tensor none;
  const auto error =
      error_of(trained->forward_backward(std::vector<Batch>(9, {good.input, good.targets})));
  EXPECT_EQ(error,
            "forward_backward(): got 9 batches, allowed 1 to 8, the micro-batches left of this "
            "step (gradient_accumulation_steps)");
  EXPECT_NE(error_of(trained->forward_backward({})).find("got 0 batches"), std::string::npos);
  // The first runs alone, and stays; none of the group after it does.
  const auto refused = trained->forward_backward(std::vector<Batch>{
      {good.input, good.targets}, {second.input, second.targets}, {narrow, good.targets}});
  EXPECT_NE(error_of(refused).find("stage layer.0: batch 1, counted from 0: "), std::string::npos)
      << error_of(refused);
  EXPECT_EQ(trained->micro_batches(), 1u);
  EXPECT_NE(error_of(trained->forward_backward(std::vector<Batch>{{none, none}}))
                .find("batch.input: got an undefined tensor"),
            std::string::npos);
  std::vector<Sample> rest;
  for (std::int64_t micro = 1; micro < 8; ++micro) rest.push_back(sample(micro));
  std::vector<Batch> batches;
  for (const Sample& each : rest) batches.push_back({each.input, each.targets});
  ASSERT_EQ(error_of(trained->forward_backward(batches)), "");
  const auto result = trained->step();
  ASSERT_EQ(error_of(result), "");
  EXPECT_EQ(std::bit_cast<std::uint64_t>(result->grad_norm), expected.norms.front());
}

TEST_F(Trainer, AWeightInTheGraphsOfTwoStagesKeepsMicroBatchesApart) {
  // Its gradients are added as they are computed: bottom and top of one micro-batch, then of the
  // next.
  Stages module({{.name = "shared", .shape = {inputs}}, {.name = "below", .shape = {inputs}}},
                {{.name = "bottom", .parameters = {0, 1}, .lookup = {}},
                 {.name = "top", .parameters = {0}, .lookup = {}}},
                {[](const at::Tensor& input, const auto& p) { return input * p[0] + p[1]; },
                 [](const at::Tensor& input, const auto& p) { return (input * p[0]).mean(); }});
  Config settings = eight_micro_batches(config());
  settings.param_dtype = settings.grad_accum_dtype = DType::BFloat16;  // sums round
  const Outcome expected = train_eight(*engine(module, settings), /*together=*/false);
  settings.artesian.activation_memory = std::uint64_t{1} << 30;
  const Outcome outcome = train_eight(*engine(module, settings), /*together=*/true);
  expect_same_bits(outcome, expected);
  EXPECT_EQ(outcome.demands, expected.demands);
}

TEST_F(Trainer, CheckpointedStagesRunTwiceAndChangeNoBit) {
  std::array<int, 2> calls{};
  const auto counted = [&calls](std::size_t stage, Stages::Forward forward) -> Stages::Forward {
    return [&calls, stage, forward](const at::Tensor& input, const auto& p) {
      ++calls[stage];
      return forward(input, p);
    };
  };
  Stages module({{.name = "weight", .shape = {width, inputs}}, vector_of("scale")},
                {{.name = "bottom", .parameters = {0}, .lookup = {}},
                 {.name = "top", .parameters = {1}, .lookup = {}}},
                {counted(0, [](const at::Tensor& input,
                               const auto& p) { return at::tanh(at::linear(input, p[0])); }),
                 counted(1, [](const at::Tensor& input, const auto& p) {
                   return at::tanh(input * p[0]).square().mean();
                 })});
  Config settings = eight_micro_batches(config());
  const Outcome expected = train_eight(*engine(module, settings), /*together=*/false);
  EXPECT_EQ(calls, (std::array<int, 2>{48, 48}));
  settings.activation_checkpointing = true;
  for (const bool together : {false, true}) {
    const auto before = calls;
    expect_same_bits(train_eight(*engine(module, settings), together), expected);
    EXPECT_EQ(calls[0] - before[0], 96);
    EXPECT_EQ(calls[1] - before[1], 96);
  }
  settings.accumulation_steps = 1;  // the last stage's backward follows its forward directly
  const auto digest_of = [&](bool checkpointed) {
    settings.activation_checkpointing = checkpointed;
    const auto trained = engine(module, settings);
    for (std::int64_t step = 0; step < 3; ++step) {
      const Sample data = sample(step);
      EXPECT_EQ(error_of(trained->forward({data.input, data.targets})), "");
      EXPECT_EQ(error_of(trained->backward()), "");
      EXPECT_EQ(error_of(trained->step()), "");
    }
    return trained->digest().value();
  };
  const std::string whole = digest_of(false);
  const auto before = calls;
  EXPECT_EQ(digest_of(true), whole);
  EXPECT_EQ(calls[0] - before[0], 6);
  EXPECT_EQ(calls[1] - before[1], 3);
}

TEST_F(Trainer, ALookUpMayStandBesideALayerWhoseBackwardNeedsItsWeight) {
  const std::vector<ParameterSpec> parameters{{.name = "table", .shape = {10, width}},
                                              {.name = "weight", .shape = {width, width}}};
  const std::vector<StageSpec> stages{{.name = "all", .parameters = {0, 1}, .lookup = 0}};
  Stages module(parameters, stages, {[](const at::Tensor& input, const auto& p) {
                  return (at::linear(input, p[0]) - 1).square().mean();
                }});
  for (const std::uint64_t threshold : {0, 10'000}) {  // streamed, persistent
    Config settings = config();
    settings.zero.param_persistence_threshold = threshold;
    settings.optimizer.lr = 0.01;
    const auto trained = engine(module, settings);
    const at::Tensor ids = at::arange(8, at::kLong).reshape({2, 4});
    const at::Tensor none;
    double first = 0.0;
    double last = 0.0;
    for (int step = 0; step < 50; ++step) {
      ASSERT_EQ(error_of(trained->forward_backward(std::vector<Batch>(2, {ids, none}))), "");
      const auto result = trained->step();
      ASSERT_EQ(error_of(result), "");
      (step == 0 ? first : last) = result->loss;
    }
    EXPECT_LT(last, first / 2);
  }
}

TEST_F(Trainer, ALookUpOfALaterStageIsAnError) {
  const std::vector<ParameterSpec> parameters{{.name = "first", .shape = {width, width}},
                                              {.name = "table", .shape = {10, width}}};
  Stages module(parameters,
                {{.name = "first", .parameters = {0}, .lookup = {}},
                 {.name = "later", .parameters = {1}, .lookup = 1}},
                {});
  const auto made = Engine::create(module, config(), {});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::Invalid);
  EXPECT_NE(made.error().message.find("stages()[1] later: lookup is for stage 0"),
            std::string::npos);
}

TEST_F(Trainer, AParameterThatAForwardLeavesOutStaysAsItWas) {
  // "idle" is in a stage but not in its graph; "below" is under a stage that cuts the graph.
  Stages module(
      {vector_of("below"), vector_of("idle"), vector_of("used")},
      {{.name = "bottom", .parameters = {0}, .lookup = {}},
       {.name = "top", .parameters = {1, 2}, .lookup = {}}},
      {[](const at::Tensor& input, const auto& p) { return input * p[0]; },
       [](const at::Tensor& input, const auto& p) { return (input.detach() * p[1]).sum(); }});
  const auto trained = engine(module, config());
  const auto master = [&](std::uint32_t parameter) {
    std::vector<float> values;
    const auto read = trained->read_master(parameter, [&](std::span<const float> piece) {
      values.insert(values.end(), piece.begin(), piece.end());
      return Result<void>();
    });
    EXPECT_EQ(error_of(read), "");
    return values;
  };
  const std::vector<std::vector<float>> before{master(0), master(1), master(2)};
  const at::Tensor input = at::ones({4, width});
  for (int micro = 0; micro < 2; ++micro) {
    ASSERT_EQ(error_of(trained->forward({input, at::Tensor()})), "");
    ASSERT_EQ(error_of(trained->backward()), "");
  }
  ASSERT_EQ(error_of(trained->step()), "");
  EXPECT_EQ(master(0), before[0]);
  EXPECT_EQ(master(1), before[1]);
  EXPECT_NE(master(2), before[2]);
}

TEST_F(Trainer, AStageMayHaveNoParameters) {
  const auto linear = [](const at::Tensor& input, const std::vector<at::Tensor>& parameters) {
    return at::linear(input, parameters[0]);
  };
  const auto bend = [](const at::Tensor& input, const std::vector<at::Tensor>&) {
    return at::tanh(input);
  };
  const auto loss = [](const at::Tensor& input, const std::vector<at::Tensor>&) {
    return at::mean(at::square(input));
  };
  Stages module({{.name = "a", .shape = {width, inputs}}, {.name = "b", .shape = {width, width}}},
                {{.name = "bend first", .parameters = {}, .lookup = {}},
                 {.name = "a", .parameters = {0}, .lookup = {}},
                 {.name = "bend", .parameters = {}, .lookup = {}},
                 {.name = "b", .parameters = {1}, .lookup = {}},
                 {.name = "loss", .parameters = {}, .lookup = {}}},
                {bend, linear, bend, linear, loss});
  const Outcome outcome = train(*engine(module, config()), [](auto&&...) {});
  EXPECT_LT(std::bit_cast<double>(outcome.losses.back()),
            std::bit_cast<double>(outcome.losses.front()));
}

TEST_F(Trainer, IntegerInputsNeedNoLookup) {
  Stages module({{.name = "table", .shape = {10, width}}, vector_of("weight")},
                {{.name = "embed", .parameters = {0}, .lookup = {}},
                 {.name = "head", .parameters = {1}, .lookup = {}}},
                {[](const at::Tensor& ids, const auto& p) { return at::embedding(p[0], ids); },
                 [](const at::Tensor& input, const auto& p) {
                   return (at::matmul(input, p[0]) - 1).square().mean();
                 }});
  const auto trained = engine(module, config());
  const at::Tensor ids = at::arange(8, at::kLong).reshape({2, 4});
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 100; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      ASSERT_EQ(error_of(trained->forward({ids, at::Tensor()})), "");
      ASSERT_EQ(error_of(trained->backward()), "");
    }
    const auto result = trained->step();
    ASSERT_EQ(error_of(result), "");
    (step == 0 ? first : last) = result->loss;
  }
  EXPECT_LT(last, first / 4);
}

TEST_F(Trainer, WeightsComeFromTensorsAndGoOutAsTheyAre) {
  Perceptron module;
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : module.parameters()) {
    tensors.push_back(at::sin(at::arange(static_cast<std::int64_t>(spec.numel()), at::kFloat))
                          .reshape(spec.shape)
                          .to(at::kDouble));
  }
  std::vector<at::Tensor> misshapen = tensors;
  misshapen[2] = misshapen[2].t().narrow(0, 0, 3);
  EXPECT_NE(error_of(TensorWeights::create(module.parameters(), misshapen)).find("layer.1.weight"),
            std::string::npos);
  misshapen.pop_back();
  EXPECT_NE(error_of(TensorWeights::create(module.parameters(), misshapen)).find("got 7 tensors"),
            std::string::npos);
  auto weights = TensorWeights::create(module.parameters(), tensors);
  ASSERT_EQ(error_of(weights), "");
  auto made = Engine::create(module, config(), {});
  ASSERT_EQ(error_of((*made)->initialize(*weights)), "");
  for (std::uint32_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor expected = tensors[index].to(at::kFloat).contiguous();
    const float* next = expected.const_data_ptr<float>();
    ASSERT_EQ(error_of((*made)->read_master(index,
                                            [&](std::span<const float> piece) {
                                              for (const float value : piece) {
                                                EXPECT_EQ(value, *next++);
                                              }
                                              return Result<void>();
                                            })),
              "");
    EXPECT_EQ(next, expected.const_data_ptr<float>() + expected.numel());
  }
}

TEST_F(Trainer, WeightsAreNotCopiedOnTheirWay) {  // a model may be larger than memory
  Perceptron module;
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : module.parameters()) {
    tensors.push_back(at::zeros(spec.shape, at::kHalf));
  }
  auto weights = TensorWeights::create(module.parameters(), tensors);
  ASSERT_EQ(error_of(weights), "");
  tensors[0].fill_(0.5);
  std::array<float, 2> values{};
  ASSERT_EQ(error_of(weights->read(0, 1, values)), "");
  EXPECT_EQ(values, (std::array{0.5f, 0.5f}));
}

TEST_F(Trainer, AModuleThatCannotBeDrivenIsRefused) {
  Stages module({vector_of("a"), vector_of("b")},
                {{.name = "only", .parameters = {0}, .lookup = {}}}, {});
  const auto made = Engine::create(module, config(), {});
  EXPECT_EQ(error_of(made),
            "module.parameters()[1] b: no stage uses it; name it in a stage, or leave it out");
}

}  // namespace
}  // namespace artesian::zero3
