#include "zero3/residents.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "tiering/dry_slots.h"
#include "zero3/step_trace.h"

namespace artesian::zero3 {
std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.moves != b.moves ? a.moves > b.moves : a.kind < b.kind;
                   });
  std::vector<Candidate> residents;
  for (const Candidate& candidate : candidates) {
    if (candidate.bytes > limits.bytes || candidate.elements > limits.elements_max) continue;
    limits.bytes -= candidate.bytes;
    limits.elements_max -= candidate.elements;
    residents.push_back(candidate);
  }
  return residents;
}

/// Multiples of the golden ratio, modulo 1, cut the circle as evenly as any order can.
std::vector<std::uint64_t> spread_order(std::uint64_t count) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / 1.618...
  std::vector<std::uint64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(),
            [](std::uint64_t a, std::uint64_t b) { return a * golden < b * golden; });
  return order;
}

std::vector<std::uint64_t> fetches_of_a_pass(const Placement& placement,
                                             const std::vector<StageSpec>& stages,
                                             std::uint64_t homes, const PrefetchLimits& limits) {
  const Layout& layout = placement.layout;
  std::vector<tiering::DryUnit> units;
  for (std::size_t unit = 0; unit < layout.units.size(); ++unit) {
    const std::uint64_t bytes = layout.units[unit].image * dtype_size(placement.compute_dtype);
    units.push_back({.slot_bytes = placement.units[unit].aliased ? 0 : bytes,
                     .persistent = layout.units[unit].persistent});
  }
  std::vector<std::uint64_t> fetches(layout.units.size(), 0);
  tiering::DrySlots slots(std::move(units), placement.device_pool_bytes, homes,
                          [&](const tiering::DryMove& move) {
                            if (move.to == tiering::SlotState::Fetching) ++fetches[move.unit];
                          });
  Prefetcher prefetcher(layout, slots, limits);
  const auto accesses = step_trace(layout, stages, /*micro_batches=*/1, /*group=*/1);
  const auto run = [&]() -> Result<void> {
    ARTESIAN_TRY_VOID(prefetcher.gather_persistent());
    for (int step = 0; step < 3; ++step) {  // recorded, first with look-ahead, steady
      fetches.assign(fetches.size(), 0);
      prefetcher.begin_step();
      for (const StageAccess& access : accesses) {
        ARTESIAN_TRY_VOID(prefetcher.enter(access.units));
        ARTESIAN_TRY_VOID(prefetcher.leave(access.units));
      }
      ARTESIAN_TRY_VOID(prefetcher.end_step());
      ARTESIAN_TRY_VOID(prefetcher.look_ahead_to_next_step());
    }
    return {};
  };
  static_cast<void>(run().has_value());  // lack of room, which the placement rules out
  return fetches;
}

}  // namespace artesian::zero3
