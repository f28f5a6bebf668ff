#include "zero3/plan/evaluation_plan.h"

#include "zero3/plan/dry_slots.h"

namespace artesian::zero3 {

using tiering::Route;
using tiering::SlotState;
using tiering::Tier;

Result<Moved> plan_evaluation(const Placement& placement, const std::vector<StageSpec>& stages,
                              const PrefetchLimits& limits) {
  Moved moved;
  DrySlots slots(dry_units(placement), placement.device_pool_bytes, placement.device_homes(),
                 [&](const DryMove& move) {
                   if (move.to != SlotState::Fetching) return;
                   const UnitPlacement& place = placement.units[move.unit];
                   const std::uint64_t bytes = placement.param_bytes(move.unit);
                   if (place.param == Tier::Nvme) moved.nvme_read += bytes;
                   if (place.gather == Route::Queues) moved.to_device += bytes;
                 });
  Prefetcher prefetcher(placement.layout, slots, limits);
  ARTESIAN_TRY_VOID(prefetcher.gather_persistent());
  constexpr int passes = 4;  // recording, first followed, first repeated, and steady passes
  for (int pass = 0; pass < passes; ++pass) {
    moved = {};
    ARTESIAN_TRY_VOID(prefetcher.begin_pass(Course::Evaluations));
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const AccessOrder::Access& units = placement.layout.stages[stage];
      ARTESIAN_TRY_VOID(prefetcher.enter(units));
      ARTESIAN_TRY_VOID(prefetcher.leave(units));
    }
  }
  return moved;
}

}  // namespace artesian::zero3
