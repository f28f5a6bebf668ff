// Proves where kept inputs are placed. A group is as large as the budget of activations allows.
// Host memory takes inputs up to its budget, the last stage's first; the rest is on NVMe. More host
// memory never means more NVMe bytes. A step moves its inputs as often as they are used.
#include "zero3/plan/kept_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/zero3/small_model.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

constexpr std::uint64_t no_room = 0;

class KeptInputsTest : public testing::Test {
 protected:
  KeptInputs describe(bool nvme = true, std::uint64_t host_room = no_room) const {
    return describe_inputs({.stages = &model.stages,
                            .elements = &elements,
                            .element_size = 4,
                            .micro_batches = micro_batches,
                            .activation_bytes = activations,
                            .nvme = nvme},
                           host_room);
  }
  Result<Placement> place(std::uint64_t host, Offload offload = Offload::Nvme) const {
    Config config;
    config.accumulation_steps = micro_batches;
    config.activation_checkpointing = config.cpu_checkpointing = true;
    config.zero.stage = 3;
    config.zero.offload_param.device = config.zero.offload_optimizer.device = offload;
    config.zero.offload_param.max_in_cpu = 0;
    config.zero.param_persistence_threshold = 0;
    return make_placement({.parameters = &model.parameters,
                           .stages = &model.stages,
                           .config = &config,
                           .device_bytes = std::uint64_t{1} << 30,
                           .host_bytes = host,
                           .spare_device = false,
                           .input_elements = elements,
                           .activation_bytes = activations});
  }

  SmallModel model = make_small_model(1000, 64, 4);  // six stages
  std::vector<std::uint64_t> elements = std::vector<std::uint64_t>(6, 100'000);
  std::uint64_t micro_batches = 8;
  std::uint64_t activations = std::uint64_t{1} << 30;
};

TEST_F(KeptInputsTest, AGroupIsWhatTheBudgetOfActivationsAllows) {
  const std::uint64_t boundary = 401'408;  // pages of one stage's input
  for (const std::uint64_t group : {1u, 2u, 5u, 8u}) {
    activations = group * boundary;
    EXPECT_EQ(describe().at_once, group);
    activations += boundary - 1;
    EXPECT_EQ(describe().at_once, group);
  }
  activations = 1;
  EXPECT_EQ(describe().at_once, 1u);  // one can always run
  activations = 100 * boundary;
  EXPECT_EQ(describe().at_once, 8u);  // all of a step
  // Without NVMe, inputs beyond host memory stay where they were computed, and count.
  activations = 7 * boundary;
  EXPECT_EQ(describe(false).at_once, 1u);
  EXPECT_EQ(describe(false, 14 * boundary).at_once, 3u);
  EXPECT_EQ(describe(false, 1000 * boundary).at_once, 7u);
}

TEST_F(KeptInputsTest, MicroBatchesThatMayNotBeGroupedAreNot) {
  model.stages.back().parameters.push_back(model.stages[2].parameters.front());
  EXPECT_EQ(describe().at_once, 1u);
}

TEST_F(KeptInputsTest, ABatchThatIsNotLookedUpIsKeptAnyway) {
  EXPECT_EQ(describe().bytes[0], 400'000u);
  model.stages.front().lookup.reset();
  const KeptInputs inputs = describe();
  EXPECT_EQ(inputs.bytes[0], 0u);
  EXPECT_EQ(inputs.home(0, 0), Tier::Device);
  EXPECT_EQ(inputs.home(1, 0), Tier::Nvme);
}

TEST_F(KeptInputsTest, WhatAStepMovesCountsTheGroupsThatUseAPlace) {
  KeptInputs inputs = describe();
  for (const std::uint64_t at_once : {1u, 3u, 5u, 8u}) {
    inputs.at_once = at_once;
    std::uint64_t used = 0;
    for (std::uint64_t index = 0; index < at_once; ++index) used += input_moves(inputs, 8, index);
    EXPECT_EQ(used, 2u * 8);  // each is written once and read once
  }
}

TEST_F(KeptInputsTest, TheLastStageComesFirstAndEveryPlaceOnce) {
  const KeptInputs inputs = describe();
  const auto order = places_by_worth(inputs);
  EXPECT_EQ(order.size(), 48u);
  EXPECT_EQ(std::set<std::uint64_t>(order.begin(), order.end()).size(), 48u);
  for (std::uint64_t index = 0; index < 8; ++index) EXPECT_EQ(order[index], 5 * 8 + index);
}

TEST_F(KeptInputsTest, BuffersFillTheRoomThatTheyGetAndNoMore) {
  KeptInputs inputs = describe();
  for (std::uint64_t room = 4096; room < (4u << 20); room = room * 5 / 4) {
    size_input_buffers(inputs, room);
    EXPECT_GE(inputs.buffer_count, 1u);
    EXPECT_EQ(inputs.block_bytes % 4096, 0u);
    EXPECT_LE(inputs.buffer_bytes(), room);
    EXPECT_LE(inputs.buffer_bytes(), input_buffers_max(inputs));
    EXPECT_LE(inputs.block_bytes, inputs.largest());
  }
  EXPECT_GE(inputs.buffer_bytes(), inputs.largest());
}

TEST_F(KeptInputsTest, HostMemoryTakesWhatFitsAndTheRestIsOnNvme) {
  std::uint64_t on_nvme_before = ~std::uint64_t{0};
  std::set<std::uint64_t> seen;
  for (std::uint64_t host = 1 << 20; host < (64u << 20); host = host * 17 / 16) {
    SCOPED_TRACE(host);
    const auto plan = place(host);
    if (!plan.has_value()) continue;
    const KeptInputs& inputs = plan->inputs;
    ASSERT_EQ(inputs.at_once, 8u);
    const std::uint64_t on_nvme = inputs.bytes_in(Tier::Nvme);
    EXPECT_EQ(inputs.bytes_in(Tier::Host) + on_nvme, 48 * 401'408u);
    EXPECT_EQ(inputs.bytes_in(Tier::Device), 0u);
    EXPECT_LE(plan->host_pool_bytes, host);
    EXPECT_LE(on_nvme, on_nvme_before);
    EXPECT_GE(plan->nvme_param_bytes, on_nvme);
    EXPECT_EQ(inputs.buffer_count != 0, on_nvme != 0);
    on_nvme_before = on_nvme;
    seen.insert(on_nvme == 0 ? 2 : inputs.bytes_in(Tier::Host) == 0 ? 0 : 1);
  }
  EXPECT_EQ(seen, (std::set<std::uint64_t>{0, 1, 2}));  // none, some and all occurred
}

TEST_F(KeptInputsTest, WithoutNvmeTheRestStaysWhereItIsComputed) {
  const std::uint64_t least = [&] {
    std::uint64_t host = 1 << 16;
    while (!place(host, Offload::Cpu).has_value()) host += 1 << 12;
    return host;
  }();
  activations = 3 * 401'408;  // of two boundaries and no place
  const auto tight = place(least, Offload::Cpu);
  EXPECT_EQ(tight->inputs.at_once, 1u);
  EXPECT_EQ(tight->inputs.bytes_in(Tier::Device), 6 * 401'408u);
  const auto some = place(least + 2 * 401'408, Offload::Cpu);
  EXPECT_EQ(some->inputs.bytes_in(Tier::Host), 2 * 401'408u);
  EXPECT_EQ(some->inputs.bytes_in(Tier::Nvme), 0u);
  const auto all = place(least + 18 * 401'408, Offload::Cpu);
  EXPECT_EQ(all->inputs.at_once, 3u);
  EXPECT_EQ(all->inputs.bytes_in(Tier::Host), 18 * 401'408u);
  EXPECT_EQ(all->inputs.bytes_in(Tier::Device), 0u);
}

TEST_F(KeptInputsTest, InputsComeBeforeOptimizerStateOfTheSameWorth) {
  for (std::uint64_t host = 1 << 20; host < (64u << 20); host = host * 9 / 8) {
    const auto plan = place(host);
    if (!plan.has_value() || plan->inputs.bytes_in(Tier::Nvme) < 2 * 401'408) continue;
    for (std::uint32_t unit = 0; unit < plan->units.size(); ++unit) {
      for (std::uint64_t group = 0; group < plan->sub_group_count(unit); ++group) {
        // A sub-group that is smaller than an input may still fit.
        if (plan->sub_group_numel(unit, group) * 8 < 401'408) continue;
        EXPECT_EQ(plan->optimizer_home(unit, group), Tier::Nvme) << host;
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
