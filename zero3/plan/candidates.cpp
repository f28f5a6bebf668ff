#include "zero3/plan/candidates.h"

#include <algorithm>

#include "base/check.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

/// A step reads and writes each byte of optimizer state, and may read it once more.
std::uint64_t state_moves(const Placement& plan) noexcept {
  return plan.measures ? 3 : 2;
}

/// The indices of `state` in the order promised by state_candidates().
std::vector<std::uint64_t> order_of_state(const Placement& plan, const PlacementRequest& request,
                                          bool gradients_spill,
                                          const std::vector<Candidate>& state) {
  const bool under_backward =
      !gradients_spill && may_update_under_backward(*request.config, plan, *request.stages);
  if (!under_backward) return spread_order(state.size());
  std::vector<std::vector<std::uint64_t>> of_unit(plan.units.size());
  for (std::uint64_t place = 0; place < state.size(); ++place) {
    of_unit[state[static_cast<std::size_t>(place)].unit].push_back(place);
  }
  std::vector<std::uint64_t> units = spread_order(of_unit.size());
  const std::vector<bool> early = final_early(plan.layout, *request.stages);
  std::stable_partition(units.begin(), units.end(),
                        [&](std::uint64_t unit) { return !early[unit]; });
  ARTESIAN_CHECK(early.size() == of_unit.size(), early.size(), of_unit.size());
  std::vector<std::uint64_t> order;
  for (const std::uint64_t unit : units) {
    order.insert(order.end(), of_unit[unit].begin(), of_unit[unit].end());
  }
  ARTESIAN_CHECK(order.size() == state.size(), order.size(), state.size());
  return order;
}

}  // namespace

std::uint64_t elements_of_a_share(const Placement& plan, const Unit& unit) noexcept {
  return std::min(unit.numel, plan.param_numel(unit));
}

std::vector<Candidate> candidates_but_state(const Placement& plan, const Config& config,
                                            const std::vector<UnitMoves>& moves) {
  ARTESIAN_CHECK(moves.size() == plan.units.size(), moves.size(), plan.units.size());
  std::vector<Candidate> all;
  for (const std::uint64_t spread : spread_order(plan.units.size())) {
    const auto index = static_cast<std::uint32_t>(spread);
    const UnitPlacement& place = plan.units[index];
    const bool trainable = plan.layout.units[index].trainable;
    // This assumes that all micro-batches run at once.
    if (place.grad != Tier::Device && trainable) {
      all.push_back({.kind = ResidentKind::Gradient,
                     .unit = index,
                     .bytes = plan.grad_bytes(index),
                     .moves = moves[index].gradient + (plan.measures ? 1 : 0)});
    }
    // The update writes the parameters, and may also read them.
    const std::uint64_t reads = !plan.update_reads_param(index) ? 0 : plan.measures ? 2 : 1;
    const std::uint64_t by_update = trainable ? 1 + reads : 0;
    if (place.param == Tier::Nvme) {
      all.push_back({.kind = ResidentKind::Parameter,
                     .unit = index,
                     .bytes = plan.param_bytes(index),
                     .moves = moves[index].fetches + by_update,
                     .elements = elements_of_a_share(plan, plan.layout.units[index])});
    }
  }
  // Large units first, which leave the least of the room unused.
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bytes > b.bytes; });
  const std::vector<Candidate> inputs = input_candidates(plan.inputs, config);
  all.insert(all.end(), inputs.begin(), inputs.end());
  return all;
}

std::vector<Candidate> input_candidates(const KeptInputs& inputs, const Config& config) {
  std::vector<Candidate> all;
  if (!inputs.some()) return all;
  for (const auto place : places_by_worth(inputs)) {
    all.push_back(
        {.kind = ResidentKind::Input,
         .sub_group = place,
         .bytes = inputs.place_bytes(static_cast<std::size_t>(place / inputs.at_once)),
         .moves = input_moves(inputs, config.accumulation_steps, place % inputs.at_once)});
  }
  return all;
}

std::vector<Candidate> state_candidates(const Placement& plan, const PlacementRequest& request,
                                        bool gradients_spill) {
  std::uint64_t count = 0;
  for (std::uint32_t index = 0; index < plan.units.size(); ++index) {
    if (plan.units[index].optimizer == Tier::Nvme) count += plan.sub_group_count(index);
  }
  std::vector<Candidate> state;
  state.reserve(static_cast<std::size_t>(count));
  for (std::uint32_t index = 0; index < plan.units.size(); ++index) {
    if (plan.units[index].optimizer != Tier::Nvme) continue;
    for (std::uint64_t group = 0; group < plan.sub_group_count(index); ++group) {
      state.push_back({.kind = ResidentKind::OptimizerState,
                       .unit = index,
                       .sub_group = group,
                       .bytes = plan.record_bytes(index, group),
                       .moves = state_moves(plan)});
    }
  }
  ARTESIAN_CHECK(state.size() == count, state.size(), count);
  std::vector<Candidate> ordered;
  ordered.reserve(state.size());
  for (const auto place : order_of_state(plan, request, gradients_spill, state)) {
    ordered.push_back(state[static_cast<std::size_t>(place)]);
  }
  return ordered;
}

std::uint64_t bytes_left(const Placement& plan, std::vector<Candidate> candidates,
                         std::uint64_t room, std::uint64_t device_spare) {
  std::uint64_t state = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.units[unit].optimizer == Tier::Nvme) state += plan.optimizer_bytes(unit);
  }
  candidates.push_back(
      {.bytes = state - std::min(state, device_spare), .moves = state_moves(plan)});
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.moves > b.moves; });
  std::uint64_t left = 0;
  for (const Candidate& each : candidates) {
    const std::uint64_t taken = std::min(each.bytes, room);
    room -= taken;
    left += (each.bytes - taken) * each.moves;
  }
  return left;
}

}  // namespace artesian::zero3
