#include "zero3/plan/residents.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/check.h"
#include "zero3/plan/rehearsal.h"

namespace artesian::zero3 {

namespace {

bool is_gradient(const Candidate& candidate) noexcept {
  return candidate.kind == ResidentKind::Gradient;
}

}  // namespace

std::uint64_t gradient_bytes(const std::vector<Candidate>& candidates) {
  std::uint64_t bytes = 0;
  for (const Candidate& each : candidates) bytes += is_gradient(each) ? each.bytes : 0;
  return bytes;
}

std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits) {
  const auto worth_more = [](const Candidate& a, const Candidate& b) {
    return a.moves != b.moves ? a.moves > b.moves : a.kind < b.kind;
  };
  // Most candidates are optimizer state, at the end, with equal values.
  auto sorted = candidates.end();
  while (sorted != candidates.begin() &&
         (sorted == candidates.end() || !worth_more(*sorted, *std::prev(sorted)))) {
    --sorted;
  }
  std::stable_sort(candidates.begin(), sorted, worth_more);
  std::inplace_merge(candidates.begin(), sorted, candidates.end(), worth_more);
  if (gradient_bytes(candidates) <= limits.bytes) {
    std::stable_partition(candidates.begin(), candidates.end(), is_gradient);
  }
  std::vector<Candidate> residents;
  for (const Candidate& candidate : candidates) {
    if (candidate.bytes > limits.bytes || candidate.elements > limits.elements_max) continue;
    limits.bytes -= candidate.bytes;
    limits.elements_max -= candidate.elements;
    residents.push_back(candidate);
  }
  return residents;
}

/// Multiples of the golden ratio, modulo 1, divide the circle as evenly as any sequence can.
std::vector<std::uint64_t> spread_order(std::uint64_t count) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / 1.618...
  std::vector<std::uint64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(),
            [](std::uint64_t a, std::uint64_t b) { return a * golden < b * golden; });
  return order;
}

std::vector<UnitMoves> moves_of_a_pass(Placement placement, const std::vector<StageSpec>& stages,
                                       const PrefetchLimits& limits) {
  for (UnitPlacement& place : placement.units) {
    const bool some = place.grad != tiering::Tier::Device && place.master != Master::None;
    if (some) place.grad = tiering::Tier::Nvme;
  }
  std::vector<UnitMoves> moves(placement.units.size());
  const auto step = plan_step({.placement = &placement, .stages = &stages, .limits = limits});
  if (!step.has_value()) return moves;  // a lack of room, which the placement rules out
  for (const StepEvent& event : step->events) {
    ARTESIAN_CHECK(event.unit < moves.size(), event.unit, moves.size());
    UnitMoves& unit = moves[event.unit];
    if (event.kind == StepEvent::Kind::Fetch) ++unit.fetches;
    unit.gradient += event.moved.grad.nvme_read + event.moved.grad.nvme_write;
  }
  for (std::uint32_t unit = 0; unit < moves.size(); ++unit) {
    if (placement.layout.units[unit].trainable) moves[unit].gradient /= placement.grad_bytes(unit);
  }
  return moves;
}

}  // namespace artesian::zero3
