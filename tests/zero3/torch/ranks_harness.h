// For tests of several ranks: the same training by one rank and by several, which are threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/local_device_group.h"
#include "tests/support/local_group.h"
#include "tests/support/separate_device.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/plan/rehearsal.h"

namespace artesian::zero3 {

using test_support::LocalDeviceGroup;
using test_support::LocalRanks;
using test_support::SeparateDevice;

/// A module that refuses a batch, makes its loss infinite, or leaves a block out if told to.
class OddModule final : public Module {
 public:
  explicit OddModule(std::unique_ptr<Module> module) : module_(std::move(module)) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return module_->parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return module_->stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    TORCH_CHECK(!refuses || stage != 1, "refused");
    if (leaves_out && stage == 2) return input;
    const at::Tensor output = module_->forward(stage, input, parameters, batch);
    return infinite && stage + 1 == stages().size() ? output / 0 : output;
  }

  bool refuses = false;
  bool infinite = false;
  bool leaves_out = false;

 private:
  const std::unique_ptr<Module> module_;
};

struct RankCase {
  std::uint32_t ranks = 2;
  int optimizer = 0;     // none, cpu, nvme
  int params = 0;        // none, cpu, nvme
  int dtype = 0;         // Equality's
  int accumulation = 0;  // micro-batches of a rank: 1, 2, 4
  int head = 0;          // tied; of its own
  int schedule = 0;      // Equality's
  int stage = 3;
  OptimizerType type = OptimizerType::Adam;
  DType moments = DType::Float32;
  std::uint64_t delays = 0;
  bool tight = false;           // the least device memory, so that slots are evicted
  bool on_demand = false;       // nothing is fetched ahead or kept
  bool fast = false;            // artesian.reduction
  std::optional<DType> sent{};  // communication_data_type
  std::optional<SeparateDevice::Order> device{};  // each rank has a device of its own
  bool joined = false;                            // from which bytes pass to the others'
};

class RanksHarness : public Equality {
 protected:
  RanksHarness()
      : Equality(Scale{
            .vocab = 211, .hidden = 36, .samples = 1, .length = 9, .steps = 8, .some = 6'000}) {}

  /// The run of one rank, or of one of several ranks with its part of the micro-batches.
  Choice choice_of(const RankCase& each) const {
    Choice run{};
    run[ParamHome] = each.params;
    run[OptimizerHome] = each.optimizer;
    run[Budget] = 2;
    run[BlockSize] = 0;
    run[Bucket] = each.on_demand ? 0 : 1;
    run[Live] = each.on_demand ? 0 : 1;
    run[Reuse] = each.on_demand ? 0 : 1;
    run[Persistence] = 1;
    run[SubGroup] = 0;
    run[Dtype] = each.dtype;
    run[Accumulation] = each.accumulation;
    run[Head] = each.head;
    run[Schedule] = each.schedule;
    return run;
  }

  std::vector<TokenBatch> micro_batches(std::uint64_t step, std::uint64_t all, std::uint64_t first,
                                        std::uint64_t stride) const {
    std::vector<TokenBatch> batches;
    for (std::uint64_t micro = first; micro < all; micro += stride) {
      TokenBatch& batch = batches.emplace_back(scale.samples, scale.length);
      std::uint64_t draw = (step * all + micro) * 2 * scale.samples * scale.length;
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        for (auto& token : tokens) {
          token = static_cast<std::int64_t>(random_word(2, 0, draw++) % scale.vocab);
        }
      }
    }
    return batches;
  }

  /// The least bytes of `budget`, of device_bytes and host_bytes, with which each rank has a
  /// placement. The other is `others`.
  std::uint64_t least(std::uint64_t PlacementRequest::*budget, const RankCase& each,
                      const Config& config, std::uint64_t others) const {
    const Module& module = *modules_[static_cast<std::size_t>(each.head)];
    PlacementRequest request{
        .parameters = &module.parameters(),
        .stages = &module.stages(),
        .config = &config,
        .compute_dtype = *config.artesian.compute_dtype,
        .separate_device = each.device.has_value(),
        .device_bytes = others,
        .host_bytes = others,
        .ranks = each.ranks,
        .device_group = each.joined,
        .whole_params = each.stage < 3 || (each.device.has_value() && !each.joined)};
    std::uint64_t low = 0;
    std::uint64_t high = everything;
    while (high - low > 1) {
      request.*budget = low + (high - low) / 2;
      (make_placement(request).has_value() ? high : low) = request.*budget;
    }
    return high;
  }

  std::uint64_t least_device(const RankCase& each, const Config& config) const {
    return least(&PlacementRequest::device_bytes, each, config, everything);
  }

  /// An engine for the rank of `group`, or for one rank that runs all micro-batches.
  struct Run {
    std::unique_ptr<SeparateDevice> device;  // these outlive the engine
    std::unique_ptr<LocalDeviceGroup> devices;
    std::unique_ptr<OddModule> module;
    std::unique_ptr<Engine> engine;
  };
  Result<Run> make(const RankCase& each, comm::Group* group, std::uint64_t all,
                   const std::function<void(Config&)>& change = {}) {
    at::set_num_threads(1);
    Config config = config_of(choice_of(each));
    config.accumulation_steps = all / (group == nullptr ? 1 : group->ranks());
    config.zero.stage = each.stage;
    config.optimizer.type = each.type;
    config.artesian.moments = each.moments;
    if (each.fast) config.artesian.reduction = Reduction::Fast;
    config.communication_dtype = each.sent;
    config.artesian.device_memory = config.artesian.host_memory = everything;
    if (each.tight && group != nullptr) config.artesian.device_memory = least_device(each, config);
    if (change) change(config);
    Run run;
    run.module =
        std::make_unique<OddModule>(models::make_module(small_gpt2(scale, each.head == 0)));
    EngineOptions options{.group = group};
    if (group != nullptr && each.device.has_value()) {
      run.device = std::make_unique<SeparateDevice>(*each.device, group->rank());
      run.device->micro_batches_at_once = std::size_t{1} << each.accumulation;
      options.backend = run.device.get();
      if (each.joined) {
        run.devices = std::make_unique<LocalDeviceGroup>(
            static_cast<test_support::LocalGroup&>(*group), *run.device);
        options.device_group = run.devices.get();
      }
    }
    options.input_elements = input_elements(*run.module);
    ARTESIAN_TRY(engine, create_patiently(*run.module, config, options));
    run.engine = std::move(engine);
    RandomWeights weights(run.module->parameters(), 1);
    ARTESIAN_TRY_VOID(run.engine->initialize(weights));
    return run;
  }

  /// Called before each step of a rank, which has `first`, `first + stride`, ... of all
  /// micro-batches.
  using Before = std::function<void(OddModule&, Engine&, std::uint64_t step, std::uint64_t first)>;
  /// Trains as the rank of `group`, or alone with all micro-batches.
  Outcome run_as(const RankCase& each, comm::Group* group, std::uint64_t all,
                 const Before& before = {}) {
    Outcome outcome;
    auto made = make(each, group, all);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    if (!made.has_value()) return outcome;
    Engine& engine = *made->engine;
    const std::uint64_t ranks = group == nullptr ? 1 : group->ranks();
    const std::uint64_t rank = group == nullptr ? 0 : group->rank();
    for (std::uint64_t step = 0; step < scale.steps; ++step) {
      if (before) before(*made->module, engine, step, rank);
      const auto batches = micro_batches(step, all, rank, ranks);
      if (!run_micro_batches(engine, batches, each.schedule == 0)) return outcome;
      auto result = engine.step();
      EXPECT_TRUE(result.has_value()) << result.error().to_string();
      if (!result.has_value()) return outcome;
      outcome.steps.push_back(std::move(result).value());
    }
    outcome.digest = digest_of(engine, outcome.steps);
    const auto closed = engine.close();
    EXPECT_TRUE(closed.has_value()) << closed.error().to_string();
    if (made->device != nullptr) {
      EXPECT_EQ(made->device->races, 0u);
    }
    if (made->devices != nullptr) {
      EXPECT_GT(made->devices->operations, 0u);
      const auto& units = engine.placement().units;
      const bool there = std::any_of(units.begin(), units.end(), [](const UnitPlacement& unit) {
        return unit.updated_on_device();
      });
      updated_there_ += there ? 1 : 0;
    }
    return outcome;
  }

  std::atomic<int> updated_there_ = 0;  // ranks whose device made some update

  /// Returns how many steps were skipped.
  std::size_t expect_bits_of_one(const RankCase& each, const Before& of_one = {},
                                 const Before& of_rank = {}) {
    const std::uint64_t all = each.ranks * (std::uint64_t{1} << each.accumulation);
    const Outcome one = run_as(each, nullptr, all, of_one);
    EXPECT_FALSE(one.digest.empty());
    LocalRanks ranks(each.ranks, {.delays = each.delays});
    std::vector<Outcome> outcomes(each.ranks);
    run_ranks(ranks, [&](comm::Group& group) {
      outcomes[group.rank()] = run_as(each, &group, all, of_rank);
      if (outcomes[group.rank()].digest.empty()) ranks.leave(group.rank());
    });
    for (const Outcome& outcome : outcomes) expect_same(outcome, one);
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "left behind in the nvme paths";
    return static_cast<std::size_t>(std::count_if(
        one.steps.begin(), one.steps.end(), [](const StepResult& step) { return step.overflow; }));
  }

  /// Returns the errors of two ranks that do different things: `act` runs a rank's part, and ends
  /// the run of both.
  std::vector<std::string> errors_of_two(
      const RankCase& each, std::uint64_t all,
      const std::function<void(Engine&, std::uint32_t rank, const std::vector<TokenBatch>&,
                               std::string& error)>& act) {
    LocalRanks ranks(2);
    std::vector<std::string> errors(2);
    run_ranks(ranks, [&](comm::Group& group) {
      auto made = make(each, &group, all);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      const auto batches = micro_batches(0, all, group.rank(), 2);
      ASSERT_NO_FATAL_FAILURE(act(*made->engine, group.rank(), batches, errors[group.rank()]));
      EXPECT_FALSE(made->engine->step().has_value());  // the run has ended
    });
    return errors;
  }

  /// The outcome of all ranks, which is the same on each.
  Outcome run_all(const RankCase& each) {
    const std::uint64_t all = each.ranks * (std::uint64_t{1} << each.accumulation);
    LocalRanks ranks(each.ranks, {.delays = each.delays});
    std::vector<Outcome> outcomes(each.ranks);
    run_ranks(ranks, [&](comm::Group& group) {
      outcomes[group.rank()] = run_as(each, &group, all);
      if (outcomes[group.rank()].digest.empty()) ranks.leave(group.rank());
    });
    for (const Outcome& outcome : outcomes) expect_same(outcome, outcomes.front());
    return outcomes.front();
  }

  /// Trains, and expects the bytes planned for the engine's own placement. Returns the bytes of
  /// gradients (without rows), or of parameters, that cross between ranks.
  struct Crossing {
    std::uint64_t gradients = 0;
    std::uint64_t parameters = 0;
  };
  Crossing expect_as_planned(const RankCase& each, test_support::LocalGroup& group,
                             std::uint64_t all) {
    constexpr std::uint64_t first_steady = 4;
    auto made = make(each, &group, all);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    if (!made.has_value()) return {};
    Engine& engine = *made->engine;
    const auto plan = plan_step({.placement = &engine.placement(),
                                 .stages = &made->module->stages(),
                                 .limits = PrefetchLimits::of(engine.config().zero),
                                 .micro_batches = engine.config().accumulation_steps,
                                 .tokens = scale.samples * scale.length,
                                 .lookup_width = scale.hidden});
    EXPECT_TRUE(plan.has_value()) << plan.error().to_string();
    if (!plan.has_value()) return {};
    std::uint64_t of_gradients = 0;  // without rows
    for (const StepEvent& event : plan->events) {
      const bool rows = event.kind == StepEvent::Kind::Rows;
      if (!rows) of_gradients += event.moved.grad.bus;
    }
    const Moved expected = plan->moved.total();
    for (std::uint64_t step = 0; step < first_steady + 2; ++step) {
      const std::uint64_t parameters = group.bytes_sent_of("parameters of");
      const std::uint64_t gradients = group.bytes_sent_of("gradients of");
      const auto batches = micro_batches(step, all, group.rank(), group.ranks());
      const bool ran = run_micro_batches(engine, batches, true) && engine.step().has_value();
      EXPECT_TRUE(ran);
      if (!ran) return {};
      const auto done = engine.take_completed();
      if (step < first_steady || !done.has_value()) continue;
      EXPECT_EQ(group.bytes_sent_of("parameters of") - parameters, plan->moved.param.bus);
      EXPECT_EQ(group.bytes_sent_of("gradients of") - gradients, of_gradients);
      EXPECT_EQ(done->bytes_nvme_read, expected.nvme_read);
      EXPECT_EQ(done->bytes_nvme_write, expected.nvme_write);
      // Beside GPUs rows that are looked up go to the device of the rank that has them.
      if (!each.joined) {
        EXPECT_EQ(done->bytes_h2d, expected.to_device);
      }
      EXPECT_EQ(done->fetch_demand, plan->fetched.demand);
      EXPECT_EQ(done->fetch_prefetched, plan->fetched.prefetched);
      EXPECT_EQ(done->fetch_reused, plan->fetched.reused);
    }
    EXPECT_TRUE(engine.close().has_value());
    return {of_gradients, plan->moved.param.bus};
  }
};

}  // namespace artesian::zero3
