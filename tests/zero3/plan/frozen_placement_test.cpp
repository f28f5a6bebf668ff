// Proves what a placement reserves for frozen units: parameters alone, wherever they are, and never
// more than the budgets. Residents get what gradients and state leave. The plan of a step ends
// backward where nothing below is trainable.
#include <gtest/gtest.h>

#include <array>

#include "base/random.h"
#include "tests/zero3/small_model.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/rehearsal.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

struct Case {
  SmallModel model = make_small_model(500, 32, 3);
  Config config;
  bool separate = false;
  std::uint64_t device = std::uint64_t{1} << 20;
  std::uint64_t host = std::uint64_t{1} << 30;

  Result<Placement> place() const {
    return make_placement({.parameters = &model.parameters,
                           .stages = &model.stages,
                           .config = &config,
                           .compute_dtype = DType::Float32,
                           .separate_device = separate,
                           .device_bytes = device,
                           .host_bytes = host});
  }
};

Case make_case(std::uint64_t seed) {
  const auto draw = [&](std::uint64_t index, std::uint64_t count) {
    return random_word(31, seed, index) % count;
  };
  constexpr std::array dtypes{DType::Float32, DType::BFloat16, DType::Float16};
  constexpr std::array homes{Offload::None, Offload::Cpu, Offload::Nvme};
  Case made;
  made.config.param_dtype = made.config.grad_accum_dtype = dtypes[draw(0, 3)];
  made.config.accumulation_steps = 1;
  made.config.zero.stage = 3;
  made.config.zero.offload_param = {
      .device = homes[draw(1, 3)], .nvme_paths = {"/p"}, .max_in_cpu = draw(5, 2) * 20'000};
  made.config.zero.offload_optimizer = {.device = homes[draw(2, 3)], .nvme_paths = {"/o"}};
  made.config.zero.param_persistence_threshold = draw(3, 2) * 100;
  made.separate = draw(4, 3) == 0;
  for (std::size_t index = 0; index < made.model.parameters.size(); ++index) {
    made.model.parameters[index].trainable = draw(10 + index, 3) == 0;
  }
  made.model.parameters[1 + draw(6, 12)].trainable = true;
  return made;
}

/// Bytes in a tier, added up anew: parameters of all units, other state of trainable ones.
std::uint64_t homes_in(const Placement& plan, Tier tier) {
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const std::uint64_t image = plan.layout.units[unit].image;
    if (plan.units[unit].param == tier) bytes += image * dtype_size(plan.param_dtype);
    if (!plan.layout.units[unit].trainable) continue;
    if (plan.units[unit].grad == tier) bytes += image * dtype_size(plan.grad_dtype);
    for (std::uint64_t group = 0; group < plan.sub_group_count(unit); ++group) {
      if (plan.optimizer_home(unit, group) == tier) bytes += plan.record_bytes(unit, group);
    }
  }
  return bytes;
}

Result<StepPlan> step_of(const Case& given, const Placement& plan) {
  return plan_step({.placement = &plan,
                    .stages = &given.model.stages,
                    .limits = PrefetchLimits::of(given.config.zero),
                    .tokens = 16,
                    .lookup_width = 32});
}

TEST(FrozenPlacement, HasParametersAloneAndKeepsToItsBudgets) {
  int planned = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Case given = make_case(seed);
    given.host = 1 + random_word(32, seed, 0) % (std::uint64_t{3} << 20);
    const auto placed = given.place();
    if (!placed.has_value()) continue;  // too little
    ++planned;
    const Placement& plan = *placed;
    const std::uint64_t ring =
        plan.ring_count * plan.ring_item_bytes + plan.grad_buffer_bytes + plan.old_state_bytes +
        plan.staging_bytes * (plan.param_staging_count + plan.grad_staging_count);
    EXPECT_EQ(homes_in(plan, Tier::Host) + ring, plan.host_pool_bytes);
    EXPECT_LE(plan.host_pool_bytes, given.host);
    EXPECT_EQ(homes_in(plan, Tier::Nvme), plan.nvme_param_bytes + plan.nvme_optimizer_bytes);
    for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
      const bool trainable = plan.layout.units[unit].trainable;
      EXPECT_EQ(plan.grad_bytes(unit) != 0, trainable);
      EXPECT_EQ(plan.optimizer_bytes(unit) != 0, trainable);
      EXPECT_EQ(plan.units[unit].master == Master::None, !trainable);
      if (trainable) continue;
      EXPECT_FALSE(plan.units[unit].updated_on_device() || plan.update_reads_param(unit));
      EXPECT_EQ(update_moves(plan, unit, true), MovedByKind{});
    }
  }
  EXPECT_GT(planned, 150);
}

TEST(FrozenPlacement, TakesTheMemoryOfItsParametersWhereAllFits) {
  Case given = make_case(0);
  given.config.param_dtype = given.config.grad_accum_dtype = DType::BFloat16;
  given.config.zero.offload_param.device = Offload::Cpu;
  given.config.zero.offload_optimizer.device = Offload::Cpu;
  given.config.zero.param_persistence_threshold = 0;
  given.separate = false;
  const Placement plan = given.place().value();
  std::uint64_t expected = 0;
  for (const Unit& unit : plan.layout.units) expected += unit.image * (unit.trainable ? 14 : 2);
  EXPECT_EQ(plan.host_pool_bytes, expected);
}

TEST(FrozenPlacement, PlansNoBackwardBelowWhatIsTrainable) {
  Case given = make_case(0);
  given.config.zero.offload_param.device = Offload::Nvme;
  for (ParameterSpec& parameter : given.model.parameters) {
    parameter.trainable = parameter.name == "h.1.in" || parameter.name == "ln_f";
  }
  const Placement plan = given.place().value();
  const auto step = step_of(given, plan);
  ASSERT_TRUE(step.has_value());
  std::vector<std::size_t> backward;
  for (const StepEvent& event : step->events) {
    EXPECT_NE(event.kind, StepEvent::Kind::Rows);
    const bool computes = event.kind == StepEvent::Kind::Compute;
    if (computes && event.direction == Direction::Backward) backward.push_back(event.stage);
    if (event.kind != StepEvent::Kind::Update && event.kind != StepEvent::Kind::Norm) continue;
    EXPECT_TRUE(plan.layout.units[event.unit].trainable);
  }
  EXPECT_EQ(backward, (std::vector<std::size_t>{4, 3, 2}));
}

TEST(FrozenPlacement, PlansForwardAloneWhereNothingIsTrainable) {
  Case given = make_case(0);
  given.config.zero.offload_param.device = Offload::Nvme;
  for (ParameterSpec& parameter : given.model.parameters) parameter.trainable = false;
  const Placement plan = given.place().value();
  const auto step = step_of(given, plan);
  ASSERT_TRUE(step.has_value());
  for (const StepEvent& event : step->events) {
    EXPECT_NE(event.kind, StepEvent::Kind::Update);
    EXPECT_EQ(event.direction, Direction::Forward);
  }
}

TEST(FrozenPlacement, TheRingIsLongOnlyForWhatIsUpdated) {
  Case given;
  given.model = make_small_model(500, 512, 16);
  given.config.param_dtype = given.config.grad_accum_dtype = DType::BFloat16;
  given.config.accumulation_steps = 1;
  given.config.zero.stage = 3;
  given.config.zero.offload_param = {
      .device = Offload::Nvme, .nvme_paths = {"/p"}, .max_in_cpu = 0};
  given.config.zero.offload_optimizer = {.device = Offload::Nvme, .nvme_paths = {"/o"}};
  given.device = std::uint64_t{1} << 25;
  given.host = std::uint64_t{1} << 28;  // all state does not fit
  const std::uint64_t least = given.config.zero.offload_optimizer.buffer_count;
  EXPECT_GT(given.place().value().ring_count, least);
  for (ParameterSpec& parameter : given.model.parameters) parameter.trainable = false;
  EXPECT_EQ(given.place().value().ring_count, least);
}

}  // namespace
}  // namespace artesian::zero3
