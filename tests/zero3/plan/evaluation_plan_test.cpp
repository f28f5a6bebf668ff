// Proves how many bytes repeated evaluations read by their plan: with the least device tier each
// use of each unit on NVMe, with more memory those that the tier does not keep, and nothing once it
// holds them all.
#include "zero3/plan/evaluation_plan.h"

#include <gtest/gtest.h>

#include "tests/zero3/plan/placement_case.h"

namespace artesian::zero3 {
namespace {

PlacementCase frozen_case() {
  PlacementCase made = make_case(DType::BFloat16, Offload::Nvme, Offload::Nvme);
  made.model = make_small_model(100, 32, 8);
  made.compute = DType::BFloat16;
  made.host = std::uint64_t{1} << 20;
  for (ParameterSpec& parameter : made.model.parameters) parameter.trainable = false;
  return made;
}

std::uint64_t read_by(const PlacementCase& given) {
  const Placement placement = given.place().value();
  return plan_evaluation(placement, given.model.stages, PrefetchLimits::of(given.config.zero))
      .value()
      .nvme_read;
}

/// Bytes of all uses of units on NVMe, if nothing were kept.
std::uint64_t all_uses(const PlacementCase& given) {
  const Placement placement = given.place().value();
  std::uint64_t bytes = 0;
  for (const auto& stage : placement.layout.stages) {
    for (const auto unit : stage) {
      const bool streamed = !placement.layout.units[unit].persistent;
      if (streamed && placement.units[unit].param == Tier::Nvme)
        bytes += placement.param_bytes(unit);
    }
  }
  return bytes;
}

TEST(EvaluationPlan, ReadsWhatTheDeviceTierDoesNotKeep) {
  PlacementCase given = frozen_case();
  given.device = smallest(given, &PlacementCase::device);
  const std::uint64_t all = all_uses(given);
  std::uint64_t before = read_by(given);
  EXPECT_LE(before, all);
  EXPECT_GE(before, all / 2);
  const std::uint64_t least = given.device;
  bool some = false;
  for (std::uint64_t eighths = 1; eighths <= 12; ++eighths) {
    given.device = least + all / 8 * eighths;
    const std::uint64_t now = read_by(given);
    EXPECT_LE(now, before) << eighths;
    some = some || (now > 0 && now < all / 2);
    before = now;
  }
  EXPECT_TRUE(some);
  EXPECT_EQ(before, 0u);
}

}  // namespace
}  // namespace artesian::zero3
