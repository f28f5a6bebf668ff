// Proves what a device with memory of its own has room for beside homes and slots, and what host
// memory keeps for it.
#include <gtest/gtest.h>

#include <set>

#include "tests/zero3/plan/placement_case.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {
namespace {

using Case = PlacementCase;

// The host waits once for a unit's sums of squares, 8 bytes for 2048 elements.
TEST(SeparateDevicePlacement, ASeparateDeviceHasRoomForTheSumsOfItsLargestUnit) {
  Case given = make_case(DType::BFloat16, Offload::None, Offload::None);
  given.separate = true;
  EXPECT_EQ(given.place().value().grad_scratch_bytes, 64u << 10);
  given.model = make_small_model(400'000, 64, 1);
  const Placement plan = given.place().value();
  EXPECT_GE(plan.grad_scratch_bytes, std::uint64_t{400'000} * 64 / 2048 * 8);
  EXPECT_LT(plan.grad_scratch_bytes, std::uint64_t{400'000} * 64 / 2048 * 8 + 8192);
  expect_within(given, plan);
}

// A stage's gradients wait for the host while the next stage's are computed and summed over
// micro-batches.
TEST(SeparateDevicePlacement, SumsOfMicroBatchesHaveRoomBesideWhatWaitsForTheHost) {
  Case given = make_case(DType::BFloat16, Offload::Cpu, Offload::Cpu);
  given.separate = true;
  given.model = make_small_model(100, 64, 3);  // blocks are the largest stages
  const std::uint64_t of_two = given.place().value().device_gradient_bytes;
  given.config.accumulation_steps = 4;
  EXPECT_EQ(given.place().value().device_gradient_bytes, of_two / 2 * 3);
  given.config.grad_accum_dtype = DType::Float32;  // the host adds each
  EXPECT_EQ(given.place().value().device_gradient_bytes, of_two);
}

TEST(SeparateDevicePlacement, HostMemoryThatNothingElseTakesKeepsWhatUnitsUpdatedAheadWere) {
  for (const Offload params : {Offload::None, Offload::Cpu, Offload::Nvme}) {
    Case given = make_case(DType::BFloat16, params, Offload::Cpu);
    given.config.gradient_clipping = 1.0;
    const auto ahead = [&](const Placement& plan) {
      const auto units = units_under_backward(plan, given.model.stages, 1.0, /*speculative=*/true);
      std::uint64_t bytes = 0;
      for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
        if (units[unit]) bytes += old_state_bytes(plan, unit);
      }
      EXPECT_LE(bytes, plan.old_state_bytes);
      return bytes;
    };
    EXPECT_EQ(given.place().value().old_state_bytes, 0u);
    given.separate = true;
    const std::uint64_t least = smallest(given, &Case::host);
    std::set<std::uint64_t> kept;
    for (std::uint64_t step = 0; step < 40; ++step) {
      given.host = least + step * 100'000;
      given.config.artesian.speculative_update = false;
      const Placement without = given.place().value();
      EXPECT_EQ(without.old_state_bytes, 0u);
      given.config.artesian.speculative_update = true;
      const Placement plan = given.place().value();
      expect_within(given, plan);
      EXPECT_EQ(plan.host_pool_bytes, without.host_pool_bytes + plan.old_state_bytes);
      EXPECT_EQ(ahead(plan), plan.old_state_bytes);
      kept.insert(plan.old_state_bytes);
    }
    EXPECT_GT(kept.size(), 2u);  // none, some, and all of those whose gradient is final early
    given.config.gradient_clipping = 0.0;  // nothing is rolled back
    given.config.check_grad_overflow = false;
    EXPECT_EQ(given.place().value().old_state_bytes, 0u);
  }
}

// Ranks exchange the devices' results through host memory.
TEST(SeparateDevicePlacement, WithSeveralRanksTheHostUpdates) {
  for (const Offload optimizer : {Offload::None, Offload::Nvme}) {
    Case given = make_case(DType::BFloat16, Offload::None, optimizer);
    given.separate = true;
    const Placement alone = given.place().value();
    EXPECT_TRUE(std::any_of(alone.units.begin(), alone.units.end(),
                            [](const UnitPlacement& unit) { return unit.updated_on_device(); }));
    given.ranks = 2;
    const Placement plan = given.place().value();
    expect_within(given, plan);
    for (const UnitPlacement& unit : plan.units) {
      EXPECT_EQ(unit.param, Tier::Device);
      EXPECT_FALSE(unit.updated_on_device());
      EXPECT_NE(unit.grad, Tier::Device);
      EXPECT_NE(unit.optimizer, Tier::Device);
    }
    EXPECT_GT(plan.exchange.bytes(), 0u);
    const bool noted = std::any_of(plan.notes.begin(), plan.notes.end(), [](const auto& note) {
      return note ==
             "offload_optimizer: none is cpu beside a GPU with 2 ranks, between which it goes";
    });
    EXPECT_EQ(noted, optimizer == Offload::None);
  }
}

TEST(SeparateDevicePlacement, DevicesThatReachEachOtherHoldGradientsIfTheyFit) {
  for (const int stage : {2, 3}) {
    Case given =
        make_case(DType::BFloat16, stage == 3 ? Offload::Cpu : Offload::None, Offload::Cpu);
    given.config.zero.stage = stage;
    given.separate = given.joined = given.hooked = true;
    given.ranks = 2;
    const Placement roomy = given.place().value();
    EXPECT_TRUE(roomy.exchange.held_there);
    EXPECT_GT(roomy.exchange.held, 0u);
    given.device = smallest(given, &Case::device);
    const Placement tight = given.place().value();
    EXPECT_FALSE(tight.exchange.held_there) << stage;
    EXPECT_EQ(tight.exchange.device_bytes(), 2 * tight.exchange.device_way_bytes());
    EXPECT_GT(tight.exchange.bytes(), tight.exchange.held);
    expect_within(given, tight);
    given.device += roomy.exchange.held + 8192;
    EXPECT_TRUE(given.place().value().exchange.held_there) << stage;
    expect_within(given, given.place().value());
  }
}

// A device's kernels update element by element, with fp32 moments.
TEST(SeparateDevicePlacement, WhatItsKernelsDoNotKnowTheHostUpdates) {
  const auto updated_there = [](const Case& given) {
    const Placement plan = given.place().value();
    expect_within(given, plan);
    return std::any_of(plan.units.begin(), plan.units.end(),
                       [](const UnitPlacement& unit) { return unit.updated_on_device(); });
  };
  for (const Offload optimizer : {Offload::None, Offload::Nvme}) {
    Case given = make_case(DType::BFloat16, Offload::None, optimizer);
    given.separate = true;
    EXPECT_TRUE(updated_there(given));
    given.config.artesian.moments = DType::BFloat16;
    EXPECT_FALSE(updated_there(given));
    given.config.artesian.moments = DType::Float32;
    for (const OptimizerType type : {OptimizerType::Lamb, OptimizerType::Muon}) {
      given.config.optimizer.type = type;
      EXPECT_FALSE(updated_there(given));
    }
  }
}

TEST(SeparateDevicePlacement, ASeparateDeviceHasStagingAndNoAliasesOfHostMemory) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::None);
  given.separate = true;
  given.config.zero.offload_param.max_in_cpu = 9000;
  const auto plan = given.place().value();
  EXPECT_EQ(plan.param_staging_count, given.config.zero.offload_param.buffer_count);
  EXPECT_EQ(plan.grad_staging_count, 4u);
  EXPECT_EQ(plan.staging_bytes % (plan.sub_group * 2), 0u);
  EXPECT_LE(plan.staging_bytes, std::uint64_t{4} << 20);
  EXPECT_GT(plan.ring_item_bytes, 0u);
  bool kept = false;
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    const UnitPlacement& unit = plan.units[index];
    kept = kept || unit.param == Tier::Host;
    EXPECT_FALSE(unit.aliased());  // 16 bit, computed in fp32
    EXPECT_EQ(unit.updated_on_device(), plan.layout.units[index].persistent);
    EXPECT_EQ(unit.grad == Tier::Device, unit.updated_on_device());
  }
  EXPECT_TRUE(kept);
  Case fp32 = make_case(DType::Float32, Offload::Cpu, Offload::Cpu);
  const auto on_host = fp32.place();
  ASSERT_TRUE(on_host.has_value());
  for (const UnitPlacement& unit : on_host->units) EXPECT_TRUE(unit.aliased());
  fp32.separate = true;
  const auto separate = fp32.place();
  ASSERT_TRUE(separate.has_value());
  for (const UnitPlacement& unit : separate->units) {
    EXPECT_EQ(unit.aliased(), unit.param == Tier::Device);
  }
}

// A unit's state is there whole or not at all, with its gradients, and beside its parameters. The
// units of a smaller budget are a subset of those of a larger one.
TEST(SeparateDevicePlacement, ASeparateDeviceUpdatesTheUnitsThatItsSpareMemoryHolds) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const Offload params : {Offload::None, Offload::Nvme}) {
      Case given = make_case(dtype, params, Offload::Nvme);
      given.separate = true;
      given.compute = dtype;
      given.config.zero.sub_group_size = 4096;
      given.spare_device = false;
      given.host = smallest(given, &Case::host);
      EXPECT_EQ(state_in(given.place().value(), Tier::Device), 0u);
      given.spare_device = true;
      given.device = smallest(given, &Case::device);
      std::vector<bool> before;
      std::set<std::uint64_t> seen;
      int compared = 0;
      for (; given.device < 4u << 20; given.device += 16384) {
        const Placement plan = given.place().value();
        expect_within(given, plan);
        std::vector<bool> there;
        for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
          const UnitPlacement& place = plan.units[unit];
          there.push_back(place.updated_on_device());
          const std::uint64_t state = plan.optimizer_bytes_in(Tier::Device, unit);
          ASSERT_EQ(state, there[unit] ? plan.optimizer_bytes(unit) : 0u) << unit;
          ASSERT_EQ(place.grad == Tier::Device, there[unit]) << unit;
          ASSERT_TRUE(place.param == Tier::Device || !there[unit]) << unit;
        }
        // Fewer persistent parameters make other units.
        if (before.size() == there.size()) {
          for (std::size_t unit = 0; unit < there.size(); ++unit) {
            ASSERT_TRUE(there[unit] || !before[unit]) << given.device;
          }
          ++compared;
        }
        seen.insert(state_in(plan, Tier::Device));
        before = there;
      }
      EXPECT_GT(seen.size(), 3u);
      EXPECT_GT(compared, 100);
      const Placement all = given.place().value();
      EXPECT_EQ(bytes_in(all, Tier::Nvme), 0u);
      const Master kept = dtype == DType::Float32   ? Master::Parameter
                          : dtype == DType::Float16 ? Master::Own
                                                    : Master::Split;
      EXPECT_EQ(master_of(all), kept);
      const std::string said = "artesian.device_memory: all ";
      EXPECT_TRUE(std::any_of(all.notes.begin(), all.notes.end(),
                              [&](const std::string& note) { return note.starts_with(said); }));
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
