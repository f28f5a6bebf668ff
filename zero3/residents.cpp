#include "zero3/residents.h"

#include <algorithm>
#include <numeric>

#include "zero3/step_plan.h"

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
                                             const PrefetchLimits& limits) {
  std::vector<std::uint64_t> fetches(placement.units.size(), 0);
  const auto step = plan_step({.placement = &placement, .stages = &stages, .limits = limits});
  if (!step.has_value()) return fetches;  // lack of room, which the placement rules out
  for (const StepEvent& event : step->events) {
    if (event.kind == StepEvent::Kind::Fetch) ++fetches[event.unit];
  }
  return fetches;
}

}  // namespace artesian::zero3
