// Proves the promises of the update under backward: the bits are those without it, for any share;
// it only happens if nothing waits for the last gradient; access to the weights meanwhile is
// refused; and faults in it end the run.
#include <ATen/ATen.h>

#include "tests/support/damage_files.h"
#include "tests/support/separate_device.h"
#include "tests/zero3/under_backward_harness.h"
#include "zero3/plan/rehearsal.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;

class UnderBackwardTest : public UpdateUnderBackward {
 protected:
  Config unclipped(const Choice& choice) const {
    Config config = config_of(choice);
    config.gradient_clipping = 0.0;
    config.check_grad_overflow = false;
    if (choice[Budget] == 0 && !separate_device) {  // with which gradients would spill
      config.artesian.host_memory =
          host_budget_for_gradients(module_of(choice), config, choice[Masters] == 0);
    }
    return config;
  }
};

TEST_F(UnderBackwardTest, OfAnyShareGivesTheSameBits) {
  std::map<std::array<int, 3>, Outcome> references;
  int units = 0;
  for (std::uint64_t seed = 0; seed < 36; ++seed) {
    Choice choice = random_choice(81, seed);
    choice[Dtype] = seed % 2 == 0 ? 1 : 3;  // bf16
    SCOPED_TRACE(describe(choice));
    Outcome& reference = references[{choice[Dtype], choice[Accumulation], choice[Head]}];
    separate_device = false;
    const Choice simple = in_memory(choice);
    if (reference.steps.empty()) reference = train(simple, unclipped(simple));
    const bool separate = seed % 6 == 5;
    separate_device = separate;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    const Config config = unclipped(choice);
    EngineOptions options;
    options.share_under_backward = std::array{1.0, 0.5, 0.2}[seed % 3];
    if (choice[SwapFolders] == 2) options.path_disks = unlike_disks(config);
    if (separate) options.backend = &device;
    const Outcome outcome = train(choice, config, options);
    expect_same(outcome, reference);
    if (HasFatalFailure()) return;
    units += static_cast<int>(outcome.units_under_backward);
  }
  EXPECT_GE(units, 40);
}

TEST_F(UnderBackwardTest, IsDoneWithBackwardAndWithoutItAfterwards) {
  Timeline timeline;
  auto engine = create(unclipped(run), {.timeline = &timeline});
  forward_and_backward(*engine);
  const auto units = engine->placement().layout.units.size();
  ASSERT_EQ(count(engine->units_under_backward()), units - 1);  // all but the looked-up table
  const auto first = engine->step();
  ASSERT_TRUE(first.has_value());
  EXPECT_GT(first->bytes_nvme_write, 0u);
  ASSERT_TRUE(engine->finish_update().has_value());
  const std::uint64_t in_all = engine->take_completed()->bytes_nvme_write;
  EXPECT_GT(in_all, first->bytes_nvme_write);  // the table is still to be updated
  EXPECT_LT(in_all - first->bytes_nvme_write, first->bytes_nvme_write);
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_NE(text_of(timeline).find("update under backward"), std::string::npos);
}

// Parameters and state are in host memory, and all units have slots: backward copies to the device
// what the update has just made. The cores would be idle otherwise.
TEST_F(UnderBackwardTest, BesideASeparateDeviceTakesStateThatIsInHostMemory) {
  const Choice choice{1, 1, 2, 2, 2, 2, 2, 0, 0, 1, 1, 3, 0, 1};
  const Outcome reference = train(in_memory(choice), unclipped(in_memory(choice)));
  separate_device = true;
  const Config config = unclipped(choice);
  for (const double share : {0.0, 1.0}) {
    SeparateDevice device(SeparateDevice::Order::Late);
    EngineOptions options{.backend = &device, .share_under_backward = share};
    auto engine = Engine::create(module_of(choice), config, options).value();
    RandomWeights weights(module_of(choice).parameters(), 1);
    ASSERT_TRUE(engine->initialize(weights).has_value());
    std::uint64_t made = 0;
    for (std::uint32_t unit = 0; unit < engine->units_under_backward().size(); ++unit) {
      if (engine->units_under_backward()[unit]) made += engine->placement().param_bytes(unit);
    }
    EXPECT_EQ(made != 0, share != 0.0);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(engine->forward(batch.batch()).has_value());
      const std::uint64_t before = device.bytes_to_device();
      ASSERT_TRUE(engine->backward().has_value());
      const std::uint64_t copied = device.bytes_to_device() - before;
      if (step > 0) {  // the first one records
        EXPECT_EQ(copied, made) << share << " " << step;
      }
      ASSERT_TRUE(engine->step().has_value());
    }
    EXPECT_TRUE(engine->close().has_value());
    EXPECT_EQ(device.races, 0u);
    SeparateDevice another(SeparateDevice::Order::Random, 7);
    options.backend = &another;
    expect_same(train(choice, config, options), reference);
  }
}

TEST_F(UnderBackwardTest, WaitsForTheNormWhereAGradientMayBeClippedOrTheStepSkipped) {
  const auto units = [&](const Config& config) {
    const auto engine = create(config);
    const std::size_t chosen = count(engine->units_under_backward());
    EXPECT_TRUE(engine->close().has_value());
    return chosen;
  };
  EXPECT_GT(units(unclipped(run)), 0u);
  EXPECT_FALSE(waits_for_norm(unclipped(run)));
  Config clipped = unclipped(run);
  clipped.gradient_clipping = 1.0;
  Config skipping = unclipped(run);
  skipping.check_grad_overflow = true;
  Choice half = run;
  half[Dtype] = 2;
  for (Config config : {clipped, skipping, unclipped(half)}) {
    EXPECT_TRUE(waits_for_norm(config));
    config.artesian.speculative_update = false;
    EXPECT_EQ(units(config), 0u);
  }
}

TEST_F(UnderBackwardTest, IsDecidedByTheSecondStepAndLeavesTheBits) {
  std::vector<std::string> digests;
  for (const std::optional<double> share : {std::optional<double>(0.0), std::optional<double>()}) {
    auto engine = Engine::create(module_of(run), unclipped(run), {.share_under_backward = share});
    ASSERT_TRUE(engine.has_value());
    RandomWeights weights(module_of(run).parameters(), 1);
    ASSERT_TRUE((*engine)->initialize(weights).has_value());
    for (int step = 0; step < 5; ++step) {
      forward_and_backward(**engine);
      ASSERT_TRUE((*engine)->step().has_value());
    }
    digests.push_back((*engine)->digest().value());
    EXPECT_TRUE((*engine)->close().has_value());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(UnderBackwardTest, RefusesWhatComesToTheWeightsUntilTheStepIsTaken) {
  const auto engine = create(unclipped(run));
  forward_and_backward(*engine);
  const auto refused = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::Invalid);
    EXPECT_NE(error.message.find("call step() first"), std::string::npos) << error.to_string();
  };
  refused(engine->evaluate(batch.batch()).error());
  refused(engine->digest().error());
  refused(engine->read_master(0, [](std::span<const float>) { return Result<void>(); }).error());
  EXPECT_TRUE(engine->finish_update().has_value());  // of the step before: none is pending
  ASSERT_TRUE(engine->step().has_value());
  EXPECT_TRUE(engine->evaluate(batch.batch()).has_value());
  EXPECT_TRUE(engine->digest().has_value());
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(UnderBackwardTest, IsDroppedByClose) {
  const auto engine = create(unclipped(run));
  forward_and_backward(*engine);
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(UnderBackwardTest, AnErrorInItEndsTheRunWithThatError) {
  const auto engine = create(unclipped(run));
  forward_and_backward(*engine);
  ASSERT_TRUE(engine->step().has_value());
  ASSERT_TRUE(engine->forward(batch.batch()).has_value());
  ASSERT_EQ(test_support::damage_files(directory_ / "optimizer", 65536), 1);
  auto outcome = engine->backward();
  if (outcome.has_value())
    outcome = [&]() -> Result<void> {  // nothing had been read by then
      auto step = engine->step();
      return step.has_value() ? Result<void>() : Result<void>(std::move(step).error());
    }();
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::Corrupt) << outcome.error().to_string();
  EXPECT_EQ(engine->step().error().to_string(), outcome.error().to_string());
  EXPECT_EQ(engine->digest().error().to_string(), outcome.error().to_string());
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

/// A model in which the gradient of one parameter's weights is not a number.
class Spoiled final : public Module {
 public:
  Spoiled(Module& model, std::uint32_t parameter) : model_(model), spoiled_(parameter) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return model_.parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return model_.stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    at::Tensor output = model_.forward(stage, input, parameters, batch);
    const auto graph = graph_parameters(stages()[stage]);
    for (std::size_t index = 0; index < graph.size(); ++index) {
      if (graph[index] != spoiled_) continue;
      const at::Tensor weight = parameters[index].flatten()[0];
      output = output + at::sqrt((weight - weight.detach()) * 0.0);  // 0, with slope 0 * infinity
    }
    return output;
  }

 private:
  Module& model_;
  const std::uint32_t spoiled_;
};

TEST_F(UnderBackwardTest, AGradientThatIsNotFiniteStopsItAndEndsTheRunByName) {
  const Module& model = module_of(run);
  for (const std::size_t stage : {std::size_t{1}, model.stages().size() - 1}) {
    const std::uint32_t parameter = graph_parameters(model.stages()[stage]).front();
    Spoiled spoiled(module_of(run), parameter);
    auto engine = Engine::create(spoiled, unclipped(run), {.share_under_backward = 1.0});
    ASSERT_TRUE(engine.has_value());
    RandomWeights weights(model.parameters(), 1);
    ASSERT_TRUE((*engine)->initialize(weights).has_value());
    forward_and_backward(**engine);
    const auto step = (*engine)->step();
    ASSERT_TRUE(step.has_value()) << step.error().to_string();
    ASSERT_TRUE(step->end.has_value());
    EXPECT_NE(step->end->message.find(model.parameters()[parameter].name), std::string::npos);
    EXPECT_NE(step->end->message.find("some weights may have this step's update"),
              std::string::npos);
    EXPECT_FALSE((*engine)->forward(batch.batch()).has_value());
    EXPECT_TRUE((*engine)->close().has_value());
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

TEST_F(UnderBackwardTest, IsSpreadOverTheUnitsInTheirShareOfTheBytes) {
  const auto engine = create(unclipped(run));
  const Placement& placement = engine->placement();
  const auto& stages = module_of(run).stages();
  const auto bytes = [&](const std::vector<bool>& units) {
    double sum = 0.0;
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
      const Moved moved = update_moves(placement, unit, true).total();
      if (units[unit]) sum += static_cast<double>(moved.nvme_read + moved.nvme_write);
    }
    return sum;
  };
  const double total = bytes(std::vector<bool>(placement.units.size(), true));
  const std::vector<bool> most = units_under_backward(placement, stages, 1.0, false);
  double largest = 0.0;
  for (std::uint32_t unit = 0; unit < most.size(); ++unit) {
    std::vector<bool> one(most.size(), false);
    one[unit] = most[unit];
    largest = std::max(largest, bytes(one));
  }
  for (const double share : {0.0, 0.1, 0.25, 0.4, 0.6, 1.0}) {
    const std::vector<bool> units = units_under_backward(placement, stages, share, false);
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) EXPECT_LE(units[unit], most[unit]);
    const double wanted = std::min(share * total, bytes(most));
    EXPECT_LE(std::abs(bytes(units) - wanted), largest / 2 * (1 + 1e-9)) << share;
  }
  EXPECT_EQ(count(units_under_backward(placement, stages, 0.0, false)), 0u);
  EXPECT_TRUE(engine->close().has_value());
}

TEST(ShareUnderBackward, KeepsTheDiskAsBusyAsUnderForwardAsFarAsBackwardHasTime) {
  const UpdateTimes hidden{.forward = 5, .backward = 10, .update = 1, .update_disk = 4};
  EXPECT_DOUBLE_EQ(share_under_backward(hidden), 2.0 / 3.0);  // 3 uncovered: 1 and 2
  UpdateTimes some = hidden;
  some.update_disk = 9;  // 8 uncovered
  EXPECT_DOUBLE_EQ(share_under_backward(some), 2.0 / 3.0);
  some.forward_disk = 1;  // 9 of the disk: 3 and 6
  EXPECT_DOUBLE_EQ(share_under_backward(some), 6.0 / 8.0);
  UpdateTimes bound = hidden;
  bound.update_disk = 41;  // 40 uncovered: backward gets what fits
  EXPECT_DOUBLE_EQ(share_under_backward(bound), 10.0 / 40.0);
  bound.backward_disk = 2;
  EXPECT_DOUBLE_EQ(share_under_backward(bound), 8.0 / 40.0);
  bound.backward_disk = 20;
  EXPECT_EQ(share_under_backward(bound), 0.0);
  const UpdateTimes in_memory{.forward = 1, .backward = 2, .update = 1, .update_disk = 0};
  EXPECT_EQ(share_under_backward(in_memory), 0.0);
  EXPECT_EQ(share_under_backward({.update_disk = 1}), 0.0);
}

TEST(ShareUnderBackward, KeepsTheHostAsBusyWhereItHasMoreToDoThanTheDisk) {
  UpdateTimes offloaded{.forward = 5, .backward = 10, .update_host = 12};
  EXPECT_DOUBLE_EQ(share_under_backward(offloaded), 8.0 / 12.0);
  offloaded.backward_host = 3;  // 15 of the host: 5 and 10, of which 3 are gradients
  EXPECT_DOUBLE_EQ(share_under_backward(offloaded), 7.0 / 12.0);
  offloaded.update_host = 30;
  EXPECT_DOUBLE_EQ(share_under_backward(offloaded), 7.0 / 30.0);  // what backward has time for
  offloaded.backward_host = 10;
  EXPECT_EQ(share_under_backward(offloaded), 0.0);
  UpdateTimes on_nvme{.forward = 5, .backward = 10, .update_disk = 41, .update_host = 12};
  EXPECT_DOUBLE_EQ(share_under_backward(on_nvme), 10.0 / 41.0);  // limited by the disk
}

}  // namespace
}  // namespace artesian::zero3
