// Proves that placement is a function of its inputs that never exceeds a budget, and that a budget
// is refused exactly when it is too small, with the missing bytes: found by bisection for every
// placement.
#include "zero3/plan/make_placement.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "base/random.h"
#include "tests/zero3/plan/placement_case.h"

namespace artesian::zero3 {
namespace {

using Case = PlacementCase;

/// The optimizer state that a greedy choice of whole units would save, in the room that the plan
/// has used for optimizer state or left free.
std::uint64_t state_saved_by_whole_units(const Placement& plan, std::uint64_t room) {
  std::uint64_t saved = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const std::uint64_t bytes = plan.optimizer_bytes(unit);
    if (bytes > room - saved) continue;
    saved += bytes;
  }
  return saved;
}

class PlacementOf : public testing::TestWithParam<std::tuple<DType, Offload, Offload, bool>> {};

TEST_P(PlacementOf, FitsDownToItsMinimumAndSaysWhatIsMissing) {
  const auto [dtype, param, optimizer, separate] = GetParam();
  Case roomy = make_case(dtype, param, optimizer);
  roomy.separate = separate;
  for (const auto budget : {&Case::device, &Case::host}) {
    const std::uint64_t minimum = smallest(roomy, budget);
    Case tight = roomy;
    tight.*budget = minimum;
    const auto plan = tight.place();
    ASSERT_TRUE(plan.has_value());
    expect_within(tight, *plan);
    tight.*budget = minimum - 1;
    const auto refused = tight.place();
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
    EXPECT_NE(refused.error().message.find(budget == &Case::device ? "artesian.device_memory: got"
                                                                   : "artesian.host_memory: got"),
              std::string::npos);
    EXPECT_NE(refused.error().message.find(std::to_string(minimum) + " bytes"), std::string::npos)
        << refused.error().message;
    EXPECT_NE(refused.error().message.find(": 1 bytes missing"), std::string::npos)
        << refused.error().message;
  }
}

TEST_P(PlacementOf, StaysWithinRandomBudgets) {
  const auto [dtype, param, optimizer, separate] = GetParam();
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Case given = make_case(dtype, param, optimizer);
    given.separate = separate;
    given.device = random_word(seed, 1, 0) % (4u << 20);
    given.host = random_word(seed, 1, 1) % (4u << 20);
    given.config.zero.sub_group_size = random_word(seed, 1, 2) % 100000;
    given.config.zero.offload_param.max_in_cpu = random_word(seed, 1, 3) % 100000;
    given.config.zero.offload_optimizer.buffer_count = random_word(seed, 1, 4) % 9;
    given.config.zero.param_persistence_threshold = random_word(seed, 1, 5) % 40000;
    const auto plan = given.place();
    if (plan.has_value()) expect_within(given, *plan);
  }
}

TEST_P(PlacementOf, MoreHostMemoryNeverMeansMoreBytesToAndFromNvme) {
  const auto [dtype, param, optimizer, separate] = GetParam();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Case given = make_case(dtype, param, optimizer);
    const auto draw = [&](std::uint64_t number) { return random_word(seed, 3, number); };
    given.model = make_small_model(static_cast<std::int64_t>(100 + draw(0) % 2000), 32,
                                   static_cast<int>(1 + draw(1) % 5), draw(2) % 2 == 0);
    given.separate = separate;
    given.model.parameters.front().tiled = draw(9) % 2 == 0;
    given.config.zero.max_reuse_distance = 0;  // nothing stays gathered: nvme_traffic() is exact
    given.config.zero.max_live_parameters = 0;
    given.config.zero.param_persistence_threshold = draw(3) % 2 * 100;
    given.config.zero.sub_group_size = 2048 + draw(4) % 20000;
    given.config.zero.offload_param.max_in_cpu = draw(5) % 3 * 20'000;
    given.config.zero.offload_optimizer.buffer_count = 1 + draw(6) % 5;
    given.config.accumulation_steps = 1 + draw(7) % 3;
    given.spare_device = draw(8) % 2 == 0;
    std::uint64_t before = ~std::uint64_t{0};
    std::uint64_t first = 0;
    bool spilled = true;
    for (given.host = 0; given.host < 3u << 20; given.host += 4096 * (1 + draw(given.host) % 16)) {
      const auto plan = given.place();
      if (!plan.has_value()) continue;
      expect_within(given, *plan);
      const std::uint64_t bytes = nvme_traffic(given, *plan);
      const bool spills = plan->gradients_spill();
      ASSERT_LE(spills, spilled) << "seed " << seed << ", host " << given.host;
      // Gradients that just fit displace state that would save more.
      if (spilled && !spills) before = ~std::uint64_t{0};
      spilled = spills;
      ASSERT_LE(bytes, before) << "seed " << seed << ", host " << given.host;
      if (first == 0) first = bytes;
      before = bytes;
    }
    // Otherwise the device holds the state from the start.
    if (optimizer == Offload::Nvme && !given.spare_device) {
      EXPECT_LT(before, first / 2) << "seed " << seed;
    }
  }
}

TEST_P(PlacementOf, MoreDeviceMemoryNeverMeansMoreBytesToAndFromNvme) {
  const auto [dtype, param, optimizer, separate] = GetParam();
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto draw = [&](std::uint64_t index) { return random_word(seed, 7, index); };
    Case given = make_case(dtype, param, optimizer);
    given.separate = separate;
    given.model.parameters.front().tiled = draw(3) % 2 == 0;
    given.config.zero.max_reuse_distance = 0;  // nothing stays gathered: nvme_traffic() is exact
    given.config.zero.max_live_parameters = 0;
    given.config.zero.param_persistence_threshold = 0;
    given.config.zero.sub_group_size = 2048 + draw(0) % 20000;
    given.config.zero.offload_param.max_in_cpu = draw(1) % 3 * 20'000;
    given.host = smallest(given, &Case::host) + draw(2) % (1u << 20);
    const std::uint64_t least = smallest(given, &Case::device);
    std::uint64_t before = ~std::uint64_t{0};
    bool spilled = true;
    for (given.device = least; given.device < least + (1u << 20); given.device += 16384) {
      const Placement plan = given.place().value();
      expect_within(given, plan);
      const bool spills = plan.gradients_spill();
      ASSERT_LE(spills, spilled) << "seed " << seed << ", device " << given.device;
      if (spilled && !spills) before = ~std::uint64_t{0};  // as above
      spilled = spills;
      const std::uint64_t bytes = nvme_traffic(given, plan);
      ASSERT_LE(bytes, before) << "seed " << seed << ", device " << given.device;
      before = bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Placement, PlacementOf,
    testing::Combine(testing::Values(DType::Float32, DType::Float16, DType::BFloat16),
                     testing::Values(Offload::None, Offload::Cpu, Offload::Nvme),
                     testing::Values(Offload::None, Offload::Cpu, Offload::Nvme), testing::Bool()));

TEST(Placement, MasterWeightsAreSplitWhereTheUpperHalvesAreAtHand) {
  constexpr std::array<Offload, 3> homes{Offload::None, Offload::Cpu, Offload::Nvme};
  for (const Offload param : homes) {
    for (const Offload optimizer : homes) {
      for (const bool separate : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(param)) +
                     std::to_string(static_cast<int>(optimizer)) + (separate ? "s" : ""));
        Case given = make_case(DType::BFloat16, param, optimizer);
        given.separate = separate;
        given.spare_device = false;
        given.config.zero.param_persistence_threshold = 0;
        const bool far = separate && param == Offload::None && optimizer == Offload::Cpu;
        // With host memory for all of the state, but for no parameters.
        const bool for_nothing = param == Offload::Nvme;
        EXPECT_EQ(master_of(given.place().value()),
                  far || for_nothing ? Master::Own : Master::Split);
        given.config.zero.offload_param.max_in_cpu = 1'000'000'000;
        EXPECT_EQ(master_of(given.place().value()), far ? Master::Own : Master::Split);
        given.split_master = false;
        EXPECT_EQ(master_of(given.place().value()), Master::Own);
      }
    }
  }
  const Case fp16 = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  EXPECT_EQ(master_of(fp16.place().value()), Master::Own);
  const Case fp32 = make_case(DType::Float32, Offload::Nvme, Offload::Nvme);
  EXPECT_EQ(master_of(fp32.place().value()), Master::Parameter);
}

// Parameters on a separate device, state in host memory: whole master weights are closer to the
// update, split ones take 2 bytes an element less.
TEST(Placement, MasterWeightsFarFromTheirHalvesAreSplitWhereWholeOnesDoNotFit) {
  Case given = make_case(DType::BFloat16, Offload::None, Offload::Cpu);
  given.separate = true;
  Case whole = given;
  whole.split_master = false;
  const std::uint64_t least_whole = smallest(whole, &Case::host);
  const std::uint64_t least = smallest(given, &Case::host);
  std::uint64_t elements = 0;
  const Placement plentiful = given.place().value();
  for (const Unit& unit : plentiful.layout.units) elements += unit.image;
  EXPECT_LE(least, least_whole - 2 * elements + 8192);
  given.host = least_whole;
  EXPECT_EQ(master_of(given.place().value()), Master::Own);
  given.host = least_whole - 4096;
  const Placement split = given.place().value();
  EXPECT_EQ(master_of(split), Master::Split);
  expect_within(given, split);
  // With parameters meant for NVMe, gradients would spill instead.
  Case meant_for_nvme = make_case(DType::BFloat16, Offload::Nvme, Offload::Cpu);
  meant_for_nvme.separate = true;
  meant_for_nvme.compute = DType::BFloat16;
  int kept = 0;
  for (std::uint64_t host = least; host < least_whole + (1u << 20); host += 16384) {
    meant_for_nvme.host = host;
    meant_for_nvme.split_master = false;
    const auto other = meant_for_nvme.place();
    meant_for_nvme.split_master = true;
    const auto plan = meant_for_nvme.place();
    if (!other.has_value()) continue;
    ASSERT_TRUE(plan.has_value()) << plan.error().to_string();
    EXPECT_LE(plan->gradients_spill(), other->gradients_spill()) << host;
    EXPECT_LE(nvme_traffic(meant_for_nvme, *plan), nvme_traffic(meant_for_nvme, *other)) << host;
    kept += plan->gradients_spill() < other->gradients_spill() ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
}

TEST(Placement, SplitOrWholeWhicheverMovesFewerBytes) {
  int split = 0;
  int whole = 0;
  for (const Offload optimizer : {Offload::Cpu, Offload::Nvme}) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      Case given = make_case(DType::BFloat16, Offload::Nvme, optimizer);
      given.spare_device = false;
      given.host = 100'000 + random_word(seed, 6, 0) % (2u << 20);
      given.config.zero.offload_param.max_in_cpu = random_word(seed, 6, 1) % 2 * 1'000'000;
      given.config.zero.max_reuse_distance = 0;  // nothing stays gathered: nvme_traffic() is exact
      given.config.zero.max_live_parameters = 0;
      given.config.zero.sub_group_size = 4096;
      given.split_master = false;
      const auto other = given.place();
      if (!other.has_value()) continue;  // it takes more memory
      given.split_master = true;
      const auto chosen = given.place();
      ASSERT_TRUE(chosen.has_value());
      const std::uint64_t bytes = nvme_traffic(given, *chosen);
      ASSERT_LE(bytes, nvme_traffic(given, *other)) << seed;
      const bool halves = chosen->units[0].master == Master::Split;
      split += halves && bytes < nvme_traffic(given, *other) ? 1 : 0;
      whole += halves ? 0 : 1;
    }
  }
  EXPECT_GE(split, 100);
  EXPECT_GE(whole, 20);
}

TEST(Placement, WhatIsUpdatedUnderForwardAloneStaysInHostMemoryFirst) {
  int some_of_the_table = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Case given = make_case(DType::BFloat16, Offload::Cpu, Offload::Nvme);
    given.spare_device = false;
    given.host = 600'000 + random_word(seed, 9, 0) % (1u << 19);
    given.config.zero.sub_group_size = 4096;
    given.config.artesian.speculative_update = false;
    const auto in_host = [&] {  // sub-groups of the looked-up table, and of all others
      std::array<std::uint64_t, 3> count{};
      const Placement plan = given.place().value();
      for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
        for (std::uint64_t group = 0; group < plan.sub_group_count(unit); ++group) {
          if (plan.optimizer_home(unit, group) == Tier::Host) ++count[unit == 0 ? 0 : 1];
        }
      }
      count[2] = plan.sub_group_count(0);
      return count;
    };
    const auto spread = in_host();
    given.config.artesian.speculative_update = true;
    const auto first = in_host();
    given.config.artesian.speculative_update = false;
    given.config.gradient_clipping = 0.0;
    given.config.check_grad_overflow = false;
    EXPECT_EQ(in_host(), first);
    EXPECT_EQ(first[0] + first[1], spread[0] + spread[1]);
    EXPECT_EQ(first[0], std::min(first[2], first[0] + first[1]));
    some_of_the_table += spread[0] < first[0] ? 1 : 0;
  }
  EXPECT_GE(some_of_the_table, 50);
}

/// Returns where each sub-group of optimizer state lives, by unit.
std::vector<std::vector<Tier>> homes_of_state(const Case& given) {
  const Placement plan = given.place().value();
  std::vector<std::vector<Tier>> homes;
  for (const UnitPlacement& unit : plan.units) homes.push_back(unit.optimizer_homes);
  return homes;
}

/// Counts the device sizes with room for some of the state at which its place depends on whether
/// some units may be updated under backward.
int sizes_with_whole_units(Case given) {
  int others = 0;
  int all = 0;
  given.device = smallest(given, &Case::device);
  for (int size = 0; size < 32; ++size, given.device += 8192) {
    given.config.artesian.speculative_update = true;
    const Placement plan = given.place().value();
    all += state_in(plan, Tier::Device) > 0 && state_in(plan, Tier::Nvme) > 0 ? 1 : 0;
    const auto homes = homes_of_state(given);
    given.config.artesian.speculative_update = false;
    others += homes == homes_of_state(given) ? 0 : 1;
  }
  EXPECT_GE(all, 10);
  return others;
}

TEST(Placement, StateIsSpreadEvenlyWhereNoUnitCanBeUpdatedUnderBackward) {
  for (const DType sums : {DType::BFloat16, DType::Float32}) {
    Case given = make_case(DType::Float32, Offload::Cpu, Offload::Nvme);
    given.config.grad_accum_dtype = sums;
    given.config.zero.sub_group_size = 2048;
    given.host = smallest(given, &Case::host);
    ASSERT_TRUE(given.place().value().gradients_spill());
    EXPECT_EQ(sizes_with_whole_units(given), 0);
    given.host += 300'000;
    ASSERT_FALSE(given.place().value().gradients_spill());
    // 16-bit sums have no room for the old fp32 parameters.
    const bool room = sums == DType::Float32;
    EXPECT_EQ(sizes_with_whole_units(given) >= 10, room);
    EXPECT_EQ(sizes_with_whole_units(given) == 0, !room);
  }
}

TEST(Placement, GradientsSpillOnlyWhenHostMemoryLacks) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  auto plan = given.place();
  ASSERT_TRUE(plan.has_value());
  for (const UnitPlacement& unit : plan->units) EXPECT_EQ(unit.grad, Tier::Host);
  given.host = smallest(given, &Case::host);
  plan = given.place();
  ASSERT_TRUE(plan.has_value());
  for (const UnitPlacement& unit : plan->units) EXPECT_EQ(unit.grad, Tier::Nvme);
}

TEST(Placement, SpareHostMemoryHoldsMoreOptimizerStateThanWholeUnitsWould) {
  std::uint64_t by_sub_groups = 0;
  std::uint64_t by_units = 0;
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    Case given = make_case(dtype, Offload::Nvme, Offload::Nvme);
    given.spare_device = false;
    given.config.zero.sub_group_size = 2048;
    for (given.host = smallest(given, &Case::host); given.host < 3u << 20; given.host += 50'000) {
      const auto plan = given.place().value();
      const std::uint64_t in_host = state_in(plan, Tier::Host);
      const std::uint64_t left = given.host - plan.host_pool_bytes;
      if (left >= plan.sub_group * plan.state_size_max())
        continue;  // kept free until a ring can grow
      const std::uint64_t whole = state_saved_by_whole_units(plan, in_host + left);
      EXPECT_GE(in_host, whole) << given.host;
      by_sub_groups += in_host;
      by_units += whole;
    }
  }
  EXPECT_GT(by_sub_groups, by_units);
}

TEST(Placement, WhereEverythingFitsNothingIsOnNvmeAndThereIsNoRing) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.spare_device = false;
  given.config.zero.offload_param.max_in_cpu = 1'000'000'000;
  std::uint64_t all = 0;
  const auto roomy = given.place().value();
  for (const Unit& unit : roomy.layout.units) {
    all += unit.image * (2 + 12 + (unit.persistent ? 0 : 2));
  }
  given.host = all;
  const auto plan = given.place().value();
  EXPECT_EQ(plan.host_pool_bytes, all);
  EXPECT_EQ(plan.ring_count * plan.ring_item_bytes, 0u);
  EXPECT_EQ(plan.nvme_param_bytes + plan.nvme_optimizer_bytes, 0u);
  EXPECT_EQ(plan.notes.size(), 2u);
  EXPECT_NE(plan.notes[1].find("of optimizer state stay in host memory"), std::string::npos);
  given.host = all - 1;
  const auto less = given.place().value();
  EXPECT_GT(less.ring_count, 0u);
  EXPECT_GT(less.nvme_param_bytes + less.nvme_optimizer_bytes, 0u);
}

std::uint64_t params_in(const Placement& plan, Tier tier) {
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.units[unit].param == tier) bytes += plan.param_bytes(unit);
  }
  return bytes;
}

TEST(Placement, WhatSavesMoreBytesForItsMemoryStaysInIt) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.spare_device = false;
  given.config.zero.param_persistence_threshold = 0;
  given.config.zero.offload_param.max_in_cpu = 1'000'000'000;
  given.config.zero.sub_group_size = 2048;
  std::uint64_t image = 0;
  const auto roomy = given.place().value();
  for (const Unit& unit : roomy.layout.units) image += unit.image;
  given.host = 200'000 + 4 * image;  // ring, gradients, and as much as the parameters
  // Fetched twice and written once: worth more than state, which is read once and written once.
  given.config.zero.max_reuse_distance = 0;
  const auto fetched = given.place().value().units;
  EXPECT_GE(std::count_if(fetched.begin(), fetched.end(),
                          [](const auto& unit) { return unit.param == Tier::Host; }),
            4);
  // Always gathered and only written: worth less, so parameters get the room that no sub-group fits
  // in.
  given.config.zero.max_reuse_distance = ~std::uint64_t{0};
  const auto plan = given.place().value();
  EXPECT_LT(params_in(plan, Tier::Host), plan.sub_group * plan.state_size_max());
}

TEST(Placement, ParametersInHostMemoryAreSpreadOverTheModel) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.model = make_small_model(100, 32, 12);
  given.spare_device = false;
  given.config.zero.param_persistence_threshold = 0;
  const auto none = given.place().value();
  given.config.zero.offload_param.max_in_cpu = 4 * none.layout.units[2].numel;
  const auto plan = given.place().value();
  int kept = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.units[unit].param != Tier::Host) continue;
    ++kept;
    const bool last = unit + 1 == plan.units.size();
    EXPECT_TRUE(last || plan.units[unit + 1].param == Tier::Nvme) << unit;
  }
  EXPECT_GE(kept, 3);
}

TEST(Placement, MaxInCpuKeepsSoManyElementsInHostMemory) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.spare_device = false;
  given.config.zero.param_persistence_threshold = 0;
  for (const std::uint64_t elements : {0u, 9000u, 20000u, 1000000u}) {
    given.config.zero.offload_param.max_in_cpu = elements;
    const auto plan = given.place().value();
    std::uint64_t kept = 0;
    for (std::size_t index = 0; index < plan.units.size(); ++index) {
      if (plan.units[index].param == Tier::Host) kept += plan.layout.units[index].numel;
    }
    EXPECT_LE(kept, elements);
    EXPECT_EQ(kept == 0, elements < 8000);  // the smallest unit but one has 8,352 elements
  }
}

TEST(Placement, MaxInCpuIsOfTheShareThatARankHolds) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.spare_device = false;
  given.config.zero.param_persistence_threshold = 0;
  for (const int stage : {2, 3}) {
    for (const std::uint64_t ranks : {1u, 4u}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
      given.config.zero.stage = stage;
      given.ranks = ranks;
      const auto place = [&](std::uint64_t elements) {
        given.config.zero.offload_param.max_in_cpu = elements;
        return given.place().value();
      };
      const Placement none = place(0);
      std::uint64_t numel = 0;
      std::uint64_t all = 0;
      for (std::uint32_t unit = 0; unit < none.units.size(); ++unit) {
        numel += none.layout.units[unit].numel;
        all += std::min(none.layout.units[unit].numel, none.param_bytes(unit) / 2);
      }
      EXPECT_EQ(params_in(none, Tier::Host), 0u);
      EXPECT_EQ(params_in(place(all), Tier::Nvme), 0u);
      EXPECT_GT(params_in(place(all - 1), Tier::Nvme), 0u);
      const bool shared = ranks > 1 && stage == 3;
      EXPECT_TRUE(shared ? all < numel / 2 : all == numel) << all << " of " << numel;
    }
  }
}

/// Gradients and optimizer state are divided by the number of ranks, and so are the parameters of
/// stage 3.
TEST(Placement, RanksHoldExactlyTheirShares) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (std::uint64_t ranks = 1; ranks <= 7; ++ranks) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
        Case given = make_case(dtype, stage == 3 ? Offload::Nvme : Offload::None, Offload::Nvme);
        given.config.zero.stage = stage;
        given.ranks = ranks;
        given.host = smallest(given, &Case::host);
        const Placement plan = given.place().value();
        expect_within(given, plan);
        for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
          const std::uint64_t image = plan.layout.units[unit].image;
          const std::uint64_t params_cut = stage >= 3 ? ranks : 1;
          EXPECT_EQ(plan.param_bytes(unit) * params_cut, image * dtype_size(dtype));
          EXPECT_EQ(plan.grad_bytes(unit) * ranks, image * dtype_size(dtype));
          EXPECT_EQ(plan.optimizer_bytes(unit) * ranks, image * plan.state_size(unit));
          std::uint64_t elements = 0;
          for (std::uint64_t index = 0; index < plan.sub_group_count(unit); ++index) {
            EXPECT_EQ(plan.sub_group_numel(unit, index) % image_alignment, 0u);
            elements += plan.sub_group_numel(unit, index);
          }
          EXPECT_EQ(elements * ranks, image);
        }
      }
    }
  }
}

TEST(Placement, DeviceMemoryThatLiveParametersNeverUseIsNotTaken) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.spare_device = false;
  given.config.zero.param_persistence_threshold = 0;
  const auto pool_at = [&](std::uint64_t live) {
    given.config.zero.max_live_parameters = live;
    return given.place().value().device_pool_bytes;
  };
  const std::uint64_t all = pool_at(~std::uint64_t{0});
  const std::uint64_t stage = pool_at(0);  // a demand alone
  EXPECT_LT(stage, all - 4096 * 4);
  EXPECT_EQ(pool_at(4096), stage + 4096 * 4);
  EXPECT_EQ(pool_at(1'000'000), all);
  given.device = smallest(given, &Case::device);  // the budget still comes first
  EXPECT_EQ(pool_at(4096), stage);
}

TEST(Placement, ParametersUsedInHostMemoryTakeNoDeviceMemory) {
  Case given = make_case(DType::Float32, Offload::Nvme, Offload::Nvme);
  given.config.zero.param_persistence_threshold = 0;
  given.spare_device = false;
  const auto pool_at = [&](std::uint64_t kept) {
    given.config.zero.offload_param.max_in_cpu = kept;
    return given.place().value().device_pool_bytes;
  };
  EXPECT_GT(pool_at(0), 200'000u);
  EXPECT_EQ(pool_at(1'000'000), 0u);
}

/// More of it never puts more of them on NVMe, and leaves slots for parameters that need some:
/// those elsewhere, or all if compute has another dtype.
TEST(Placement, SpareDeviceMemoryHoldsParametersMeantForNvme) {
  const std::vector<std::pair<DType, bool>> cases{
      {DType::Float32, false}, {DType::Float32, true}, {DType::Float16, false}};
  for (const auto& [dtype, separate] : cases) {
    SCOPED_TRACE(std::string(dtype_name(dtype)) + (separate ? "s" : ""));
    Case given = make_case(dtype, Offload::Nvme, Offload::Cpu);
    given.separate = separate;
    given.config.zero.param_persistence_threshold = 0;
    given.config.zero.prefetch_bucket_size = 4096;
    given.device = smallest(given, &Case::device);
    const Placement least = given.place().value();
    const std::uint64_t stage = least.device_pool_bytes;
    const std::uint64_t all = params_in(least, Tier::Nvme);
    EXPECT_EQ(params_in(least, Tier::Device), 0u);
    const bool expands = dtype != DType::Float32;
    std::uint64_t last = all;
    std::set<std::uint64_t> seen;
    for (; last != 0; given.device += 4096) {
      const Placement plan = given.place().value();
      expect_within(given, plan);
      const std::uint64_t on_nvme = params_in(plan, Tier::Nvme);
      EXPECT_EQ(on_nvme + params_in(plan, Tier::Device), all);
      ASSERT_LE(on_nvme, last);
      const std::uint64_t slots = plan.device_pool_bytes - plan.device_homes();
      if (on_nvme != 0 && on_nvme != all) {
        EXPECT_GE(slots, std::min(expands ? 2 * all : on_nvme, stage + 4096 * 4));
        ASSERT_FALSE(plan.notes.empty());
        EXPECT_EQ(plan.notes[0].rfind("artesian.device_memory: ", 0), 0u) << plan.notes[0];
      }
      if (on_nvme == 0) {
        EXPECT_EQ(slots > stage, expands);  // of one stage more
        EXPECT_EQ(slots == 0, !expands);
      }
      seen.insert(last = on_nvme);
    }
    EXPECT_GT(seen.size(), 2u);
  }
}

TEST(Placement, SpareDeviceMemoryHoldsOptimizerStateWhereItIsRam) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const bool tiled : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (tiled ? ", tiled" : ""));
      Case given = make_case(dtype, Offload::Cpu, Offload::Nvme);
      given.model.parameters.front().tiled = tiled;
      given.config.zero.param_persistence_threshold = 0;
      given.config.zero.sub_group_size = 4096;
      given.host = smallest(given, &Case::host);
      given.device = smallest(given, &Case::device);
      EXPECT_EQ(state_in(given.place().value(), Tier::Device), 0u);
      std::uint64_t before = 0;
      std::set<std::uint64_t> seen;
      for (; given.device < 4u << 20; given.device += 16384) {
        const Placement plan = given.place().value();
        expect_within(given, plan);
        const std::uint64_t there = state_in(plan, Tier::Device);
        ASSERT_GE(there, before) << given.device;
        seen.insert(before = there);
      }
      EXPECT_GT(seen.size(), 20u);
      EXPECT_EQ(state_in(given.place().value(), Tier::Nvme), 0u);
      given.spare_device = false;
      EXPECT_EQ(state_in(given.place().value(), Tier::Device), 0u);
      given.spare_device = given.separate = true;
      given.host = smallest(given, &Case::host);
      EXPECT_EQ(state_in(given.place().value(), Tier::Device), 0u);
    }
  }
}

/// Its gradient is never whole in the compute dtype, and if its home is in memory compute reads it
/// there.
TEST(Placement, ATiledTableTakesNoSlotAndNoGradientOnTheDevice) {
  Case given = make_case(DType::BFloat16, Offload::Nvme, Offload::Nvme);
  given.config.zero.param_persistence_threshold = 0;
  const std::uint64_t table = given.model.parameters.front().numel();  // the largest by far
  std::uint64_t blocks = 5 * 4 * image_alignment;                      // slots of all others
  for (const ParameterSpec& each : given.model.parameters) blocks += 4 * each.numel();
  blocks -= 4 * table;
  const std::uint64_t whole = smallest(given, &Case::device);
  given.model.parameters.front().tiled = true;
  const std::uint64_t tiled = smallest(given, &Case::device);
  EXPECT_GE(whole, 8 * table);               // slot and gradient, in fp32
  EXPECT_LE(tiled, 2 * table + 4 * 14'000);  // as it is stored; the gradient is a block's
  given.device = tiled;
  Placement plan = given.place().value();
  EXPECT_EQ(plan.units.front().computed, DType::BFloat16);
  EXPECT_EQ(plan.units.back().computed, DType::Float32);
  EXPECT_FALSE(plan.units.front().aliased());
  given.config.zero.offload_param.device = Offload::Cpu;
  plan = given.place().value();
  EXPECT_TRUE(plan.units.front().aliased());
  EXPECT_LE(plan.device_pool_bytes, blocks);
  given.separate = true;  // that expands, and whose memory holds gradients on their way
  given.device = std::uint64_t{1} << 40;
  plan = given.place().value();
  EXPECT_EQ(plan.units.front().computed, DType::Float32);
  EXPECT_GE(plan.device_gradient_bytes, 8 * table);
}

TEST(Placement, ParametersStayOnTheDeviceOnlyAsFarAsTheyMay) {
  Case given = make_case(DType::Float32, Offload::Nvme, Offload::Nvme);
  given.config.zero.param_persistence_threshold = 0;
  const auto there = [&] { return params_in(given.place().value(), Tier::Device); };
  EXPECT_GT(there(), 0u);
  given.spare_device = false;
  EXPECT_EQ(there(), 0u);
  given.spare_device = true;
  given.config.zero.prefetch_bucket_size = 0;
  std::uint64_t last = 0;
  for (const std::uint64_t live : {0, 20'000, 30'000, 60'000}) {
    given.config.zero.max_live_parameters = live;
    EXPECT_LE(there(), live * 4);
    EXPECT_GE(there(), last);
    last = there();
  }
  EXPECT_GT(last, 0u);
  const auto says_so = [&] {
    const auto notes = given.place().value().notes;
    return std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
      return note.rfind("stage3_max_live_parameters: 20000 keeps ", 0) == 0;
    });
  };
  given.config.zero.max_live_parameters = 20'000;
  EXPECT_TRUE(says_so());
  given.config.zero.max_live_parameters = 1'000'000;
  EXPECT_FALSE(says_so());
  given.config.zero.offload_param.device = Offload::Cpu;
  EXPECT_EQ(there(), 0u);
  given.config.zero.offload_param.device = Offload::Nvme;
  given.config.param_dtype = DType::Float16;  // computed in fp32: slots are apart from homes
  given.config.zero.max_live_parameters = 0;
  EXPECT_GT(there(), 0u);
  given.separate = true;
  EXPECT_EQ(there(), 0u);
}

/// Compute expands parameters, so homes on the device would only take the room of slots.
TEST(Placement, WhereHostMemoryHasEverythingParametersHaveTheirHomesThere) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.config.zero.param_persistence_threshold = 0;
  given.config.zero.offload_param.max_in_cpu = 1'000'000'000;
  const Placement roomy = given.place().value();
  EXPECT_EQ(params_in(roomy, Tier::Device), 0u);
  EXPECT_EQ(roomy.nvme_param_bytes + roomy.nvme_optimizer_bytes, 0u);
  given.host = roomy.host_pool_bytes - 1;
  EXPECT_GT(params_in(given.place().value(), Tier::Device), 0u);
}

TEST(Placement, PersistenceIsCutToTheBudgetWithANote) {
  Case given = make_case(DType::Float16, Offload::Nvme, Offload::Nvme);
  given.config.zero.param_persistence_threshold = 0;
  given.device = smallest(given, &Case::device);
  given.config.zero.param_persistence_threshold = 1 << 20;
  const auto plan = given.place();
  ASSERT_TRUE(plan.has_value());
  expect_within(given, *plan);
  ASSERT_FALSE(plan->notes.empty());
  EXPECT_NE(plan->notes[0].find("stage3_param_persistence_threshold"), std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3
