// Proves that the engine's schedule is as long as `artesian plan` predicts. It trains on a device
// whose copies and computing take virtual seconds (tests/support/virtual_time.h), and a step takes
// the seconds of simulate_step with the same rates, whether the bus or computing is slower,
// wherever state is, however micro-batches run and whatever the host's own work takes. Unnecessary
// waits of the host are detected. No real time is used: docs/dev/gpu-tests.md.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/support/virtual_time.h"
#include "zero3/plan/rehearsal.h"
#include "zero3/torch/engine.h"

namespace artesian::zero3 {
namespace {

using test_support::VirtualTimeDevice;
using tiering::Queue;

constexpr std::uint64_t plenty = std::uint64_t{1} << 30;
constexpr std::uint32_t stage_count = 8;
constexpr std::int64_t width = 256;
constexpr std::int64_t samples = 4;
constexpr double stage_bytes = 2.0 * width * width;  // of parameters, and of gradients
constexpr double forward_seconds = 1.0;              // of a stage, for each micro-batch
constexpr double backward_seconds = 2.0;

/// Seconds of backward if stages are uneven: the host's work for a stage is between the two.
double backward_of(std::size_t stage, bool uneven) {
  if (!uneven) return backward_seconds;
  return stage % 2 == 0 ? backward_seconds / 4 : backward_seconds * 7 / 4;
}

/// Stages of one matrix each, which take constant seconds of the device's clock.
class Chain final : public Module {
 public:
  Chain(VirtualTimeDevice& device, bool uneven) : device_(device), uneven_(uneven) {
    for (std::uint32_t stage = 0; stage < stage_count; ++stage) {
      const std::string name = "s." + std::to_string(stage);
      parameters_.push_back({.name = name, .shape = {width, width}});
      StageSpec& made = stages_.emplace_back();
      made.name = name;
      made.parameters = {stage};
    }
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch&) override {
    device_.compute(forward_seconds);
    at::Tensor output = at::matmul(input, parameters[0]);
    if (stage + 1 == stages_.size()) output = output.to(at::kFloat).pow(2).mean();
    if (output.requires_grad()) {
      const double seconds = backward_of(stage, uneven_);
      output.register_hook([this, seconds](const at::Tensor&) { device_.compute(seconds); });
    }
    return output;
  }

 private:
  VirtualTimeDevice& device_;
  const bool uneven_;
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

enum class MicroBatches : std::uint8_t { OneByOne, LayerByLayer };
enum class Keeps : std::uint8_t { Graphs, Inputs, InputsInHost };

struct Case {
  const char* name = "";
  Offload param = Offload::Cpu;
  Offload optimizer = Offload::Cpu;
  double bus = 1.0;  // seconds of a stage's parameters, each way
  std::uint64_t micro_batches = 1;
  MicroBatches how = MicroBatches::LayerByLayer;
  Keeps keeps = Keeps::Graphs;
  std::uint64_t live = 4;  // stages whose parameters may be on the device at once
  double share_under_backward = 0.0;
  DType compute = DType::BFloat16;
  double host = 0.0;    // seconds in which the host adds a stage's gradients
  bool uneven = false;  // stages take unequal seconds in backward
};

struct Taken {  // virtual seconds of a step
  double seconds = 0.0;
  double predicted = 0.0;
  std::array<double, tiering::queue_count> busy{};  // of these, by queue
  double hidden = 0.0;                              // of copies to the host, while it computes
  std::uint64_t copies = 0;
  double of(Queue queue) const { return busy[static_cast<std::size_t>(queue)]; }
  double ratio() const { return seconds / predicted; }
};

Config config_of(const Case& of) {
  Config config;
  config.micro_batch_size = samples;
  config.accumulation_steps = of.micro_batches;
  config.gradient_clipping = 0.0;
  config.check_grad_overflow = false;
  config.param_dtype = config.grad_accum_dtype = DType::BFloat16;
  config.activation_checkpointing = of.keeps != Keeps::Graphs;
  config.cpu_checkpointing = of.keeps == Keeps::InputsInHost;
  config.zero.stage = 3;
  config.zero.offload_param.device = of.param;
  config.zero.offload_optimizer.device = of.optimizer;
  config.zero.param_persistence_threshold = 0;
  config.zero.sub_group_size = 16384;
  config.zero.max_live_parameters = of.live * width * width;
  config.artesian.compute_dtype = of.compute;
  config.artesian.device_memory = config.artesian.host_memory = plenty;
  config.artesian.activation_memory = plenty;
  return config;
}

/// Returns the module's seconds. The last stage's graph is kept if a step is one micro-batch.
StageSeconds stage_seconds(const Case& of) {
  const double again = of.keeps == Keeps::Graphs ? 0.0 : forward_seconds;
  const bool last_again = of.micro_batches > 1 || of.keeps == Keeps::InputsInHost;
  StageSeconds seconds;
  seconds.forward.assign(stage_count, forward_seconds);
  for (std::size_t stage = 0; stage < stage_count; ++stage) {
    const bool last = stage + 1 == stage_count;
    const double repeated = last && !last_again ? 0.0 : again;
    seconds.backward.push_back(backward_of(stage, of.uneven) + repeated);
  }
  return seconds;
}

/// Bytes per second of the host's kernels, which read a gradient, and write it and its sum.
double memory_rate(const Case& of) {
  return of.host > 0.0 ? 2 * stage_bytes / of.host : 1e30;
}

/// Simulates the engine's step, with kernels that take no time on the device.
double predict(const Case& of, const Engine& engine, const Module& module) {
  const KeptInputs& inputs = engine.placement().inputs;
  const std::uint64_t at_once = inputs.some() ? inputs.at_once : of.micro_batches;
  const double rate = stage_bytes / of.bus;
  const auto step =
      simulate_step({.step = {.placement = &engine.placement(),
                              .stages = &module.stages(),
                              .limits = PrefetchLimits::of(engine.config().zero),
                              .micro_batches = of.micro_batches,
                              .group = of.how == MicroBatches::LayerByLayer ? at_once : 1,
                              .tokens = samples,
                              .under_backward = engine.units_under_backward()},
                     .timing = {.rates = {.memory = memory_rate(of),
                                          .device_memory = 1e30,
                                          .to_device = rate,
                                          .to_host = rate},
                                .stages = stage_seconds(of)}});
  EXPECT_TRUE(step.has_value()) << step.error().to_string();
  return step.has_value() ? step->time.seconds : 0.0;
}

/// Returns the seconds, from span `first` on, in which gradients are copied down while the device
/// computes.
double hidden_seconds(const std::vector<VirtualTimeDevice::Span>& spans, std::size_t first) {
  double hidden = 0.0;
  for (std::size_t down = first; down < spans.size(); ++down) {
    if (spans[down].queue != Queue::ToHost) continue;
    for (std::size_t computed = first; computed < spans.size(); ++computed) {
      if (spans[computed].queue != Queue::Compute) continue;
      const double begin = std::max(spans[down].begin, spans[computed].begin);
      hidden += std::max(0.0, std::min(spans[down].end, spans[computed].end) - begin);
    }
  }
  return hidden;
}

class VirtualTime : public testing::Test {
 protected:
  VirtualTime() {
    at::set_num_threads(1);
    track_activations();  // else groups of micro-batches would be of one
    set_log_level(LogLevel::Warning);
  }

  /// Trains until steps are equal, and returns the last of them.
  Taken train(const Case& of) {
    SCOPED_TRACE(of.name);
    const double rate = stage_bytes / of.bus;
    VirtualTimeDevice device({.to_device = rate, .to_host = rate, .launch = launch});
    if (of.how == MicroBatches::LayerByLayer) device.micro_batches_at_once = of.micro_batches;
    Chain module(device, of.uneven);
    EngineOptions options{.backend = &device};
    options.share_under_backward = of.share_under_backward;
    options.input_elements.assign(stage_count, samples * width);
    std::uint64_t passed = 0;  // stages, forward and backward in turn
    if (of.how == MicroBatches::LayerByLayer) {
      options.stop = [&] {
        if (passed++ % (2 * stage_count) == stage_count) device.read_value();  // the losses
        return false;
      };
    }
    auto engine = Engine::create(module, config_of(of), options);
    EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
    if (!engine.has_value()) return {};
    RandomWeights weights(module.parameters(), 1);
    EXPECT_TRUE((*engine)->initialize(weights).has_value());
    Taken taken;
    taken.predicted = predict(of, **engine, module);
    device.waits_for_each_copy = waits_for_each_copy;
    if (of.host > 0.0) give_work(of, (*engine)->placement(), device);
    for (int step = 0; step < 7; ++step) take_step(**engine, of, device, taken);
    EXPECT_TRUE((*engine)->close().has_value());
    EXPECT_EQ(device.races, 0u);
    std::printf("%-44s %8.3f s, predicted %8.3f, ratio %.3f\n", of.name, taken.seconds,
                taken.predicted, taken.ratio());
    for (const double busy : taken.busy) EXPECT_GE(taken.seconds, busy * (1 - 1e-9));
    return taken;
  }

  /// Parameters that go up are those that an update has made.
  static void give_work(const Case& of, const Placement& placement, VirtualTimeDevice& device) {
    ASSERT_EQ(placement.units[0].param, tiering::Tier::Device);
    const double state = 2.0 * static_cast<double>(placement.state_size(0));
    const double parameter = placement.update_reads_param(0) ? 4.0 : 2.0;
    device.add_seconds = of.host / stage_bytes;
    device.update_seconds = (state + parameter + 2.0) / 2.0 / memory_rate(of);
  }

  static void take_step(Engine& engine, const Case& of, VirtualTimeDevice& device, Taken& taken) {
    constexpr std::array queues{Queue::Compute, Queue::ToDevice, Queue::ToHost};
    const double begin = device.now();
    const std::size_t first = device.spans().size();
    const std::uint64_t copies = device.copies();
    std::array<double, tiering::queue_count> before{};
    for (std::size_t at = 0; at < queues.size(); ++at) before[at] = device.busy(queues[at]);
    const auto run = run_step(engine, of, device);
    ASSERT_TRUE(run.has_value()) << run.error().to_string();
    taken.seconds = device.now() - begin;
    taken.copies = device.copies() - copies;
    taken.hidden = hidden_seconds(device.spans(), first);
    for (std::size_t at = 0; at < queues.size(); ++at) {
      taken.busy[at] = device.busy(queues[at]) - before[at];
    }
  }

  static Result<void> run_step(Engine& engine, const Case& of, VirtualTimeDevice& device) {
    const auto dtype = of.compute == DType::Float32 ? at::kFloat : at::kBFloat16;
    const at::Tensor input = at::full({samples, width}, 1.0 / 16, dtype);
    const at::Tensor targets;
    const std::vector<Batch> batches(of.micro_batches, Batch{input, targets});
    if (of.how == MicroBatches::LayerByLayer) {
      ARTESIAN_TRY(losses, engine.forward_backward(batches));
      EXPECT_EQ(losses.size(), batches.size());
    } else {
      for (const Batch& batch : batches) {
        ARTESIAN_TRY(loss, engine.forward(batch));
        EXPECT_GT(loss, 0.0);
        device.read_value();
        ARTESIAN_TRY_VOID(engine.backward());
      }
    }
    device.work(stage_count * of.host / 2);  // the norm reads what has been added
    ARTESIAN_TRY(result, engine.step());
    EXPECT_FALSE(result.overflow);
    return {};
  }

  double launch = 0.0;               // seconds of each copy, besides
  bool waits_for_each_copy = false;  // a fault
};

constexpr auto one_by_one = MicroBatches::OneByOne;
constexpr auto none = Offload::None;

TEST_F(VirtualTime, AStepTakesWhatThePlansSimulationSays) {
  const std::vector<Case> cases{
      {.name = "fast bus", .bus = 0.25},
      {.name = "fast bus, inputs kept", .bus = 0.25, .keeps = Keeps::Inputs},
      {.name = "fast bus, one by one", .bus = 0.25, .micro_batches = 4, .how = one_by_one},
      {.name = "fast bus, four", .bus = 0.25, .micro_batches = 4},
      {.name = "four, inputs kept", .micro_batches = 4, .keeps = Keeps::Inputs},
      {.name = "four, inputs in host memory", .micro_batches = 4, .keeps = Keeps::InputsInHost},
      {.name = "four", .micro_batches = 4},
      {.name = "slow bus", .bus = 4.0},
      {.name = "slow bus, one by one", .bus = 4.0, .micro_batches = 4, .how = one_by_one},
      {.name = "slow bus, inputs kept", .bus = 4.0, .keeps = Keeps::Inputs},
      {.name = "everything may be live", .live = 100},
      {.name = "everything may be live, slow bus", .bus = 4.0, .live = 100},
      {.name = "half under backward", .how = one_by_one, .share_under_backward = 0.5},
      {.name = "all under backward", .how = one_by_one, .share_under_backward = 1.0},
      {.name = "parameters there", .param = none},
      {.name = "parameters there, inputs kept", .param = none, .keeps = Keeps::Inputs},
      {.name = "parameters there, one by one",
       .param = none,
       .micro_batches = 4,
       .how = one_by_one},
      {.name = "parameters there, four", .param = none, .micro_batches = 4},
      {.name = "parameters there, slow bus", .param = none, .bus = 4.0},
      {.name = "everything there, slow bus", .param = none, .optimizer = none, .bus = 4.0},
      {.name = "state there, slow bus", .optimizer = none, .bus = 4.0},
      {.name = "slots filled anew"},
      {.name = "slots filled anew, two live", .live = 2},
      {.name = "slots filled anew, fp32", .compute = DType::Float32},
      {.name = "slow bus, four", .bus = 4.0, .micro_batches = 4},
      {.name = "parameters there, slow bus, four", .param = none, .bus = 4.0, .micro_batches = 4},
      {.name = "parameters there, all under backward",
       .param = none,
       .bus = 2.0,
       .how = one_by_one,
       .share_under_backward = 1.0},
      {.name = "slower bus, all under backward",
       .bus = 2.0,
       .how = one_by_one,
       .share_under_backward = 1.0},
  };
  for (const Case& of : cases) {
    const Taken taken = train(of);
    EXPECT_GE(taken.ratio(), 0.96) << of.name;
    EXPECT_LE(taken.ratio(), 1.04) << of.name;
  }
}

// The thread that enqueues also adds gradients and updates: each stage of backward takes as long as
// the slower of the two.
TEST_F(VirtualTime, TheHostsOwnWorkIsPartOfAStep) {
  const std::vector<Case> cases{
      {.name = "host as fast as the device", .param = none, .bus = 0.25, .host = 2.0},
      {.name = "host slower", .param = none, .bus = 0.25, .host = 3.0},
      {.name = "host, uneven stages", .param = none, .bus = 0.25, .host = 2.0, .uneven = true},
      {.name = "host, uneven, inputs kept",
       .param = none,
       .bus = 0.25,
       .keeps = Keeps::Inputs,
       .host = 3.0,
       .uneven = true},
      {.name = "host, uneven, updates under backward",
       .param = none,
       .bus = 0.25,
       .how = one_by_one,
       .share_under_backward = 0.5,
       .host = 0.5,
       .uneven = true},
  };
  for (const Case& of : cases) {
    const Taken taken = train(of);
    EXPECT_GE(taken.ratio(), 0.98) << of.name;
    EXPECT_LE(taken.ratio(), 1.02) << of.name;
  }
}

TEST_F(VirtualTime, GradientsComeDownWhileTheNextStageComputes) {
  const Taken taken = train({.name = "down under backward", .live = 100});
  EXPECT_NEAR(taken.of(Queue::ToHost), stage_count * 1.0, 1e-6);
  EXPECT_NEAR(taken.hidden, (stage_count - 1) * 1.0, 1e-6);  // nothing computes below the last
}

TEST_F(VirtualTime, AHostThatWaitsForEachCopyIsSeen) {
  const Case of{.name = "as it is", .bus = 2.0};
  const Taken as_is = train(of);
  waits_for_each_copy = true;
  const Taken waiting = train(of);
  EXPECT_EQ(waiting.predicted, as_is.predicted);
  EXPECT_EQ(waiting.busy, as_is.busy);  // no more work
  EXPECT_GT(waiting.seconds, 1.15 * as_is.seconds);
  EXPECT_GT(waiting.ratio(), 1.2);
}

TEST_F(VirtualTime, LaunchesOfCopiesTakeNoMoreThanTheirOwnSeconds) {
  const Case of{.name = "launches", .bus = 0.25};
  const Taken without = train(of);
  launch = 0.1;
  const Taken with = train(of);
  EXPECT_EQ(with.copies, without.copies);
  EXPECT_GT(with.seconds, without.seconds);  // which no plan includes
  EXPECT_LE(with.seconds, without.seconds + launch * static_cast<double>(with.copies));
}

}  // namespace
}  // namespace artesian::zero3
