// Runs the passes of draft.h, for several requests where one cannot be known to be best, and takes
// the plan that moves the fewest bytes.
#include "zero3/plan/placement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "zero3/plan/device_tier.h"
#include "zero3/plan/host_tier.h"
#include "zero3/plan/placement_notes.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

/// A ring grows by leaps, at the cost of residents: Note [More memory, never more bytes]. Where
/// they would save less than below the leap, what was right there stays.
Result<Draft> place_with_best_ring(const PlacementRequest& request) {
  ARTESIAN_TRY(on_device, place_in_device(request));
  ARTESIAN_TRY(tier, place_in_host(request, on_device));
  Draft best = std::move(tier.draft);
  PlacementRequest less = request;
  for (auto budget = tier.budget_of_a_smaller_ring; budget.has_value();) {
    less.host_bytes = *budget;
    auto below = place_in_host(less, on_device, best.cost);
    if (!below.has_value()) break;  // a ring cannot be smaller
    if (!below->beaten && below->draft.cost < best.cost) best = std::move(below->draft);
    budget = below->budget_of_a_smaller_ring;
  }
  return best;
}

/// True if spare device memory has homes in place of slots, in which parameters could stay
/// gathered.
bool takes_slots(const PlacementRequest& request, const Placement& plan) noexcept {
  if (request.config->zero.offload_param.device != Offload::Nvme) return false;
  bool state = false;
  bool some_need_slots = false;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    if (place.aliased() || plan.layout.units[unit].persistent) continue;
    if (place.param == Tier::Device) return true;
    some_need_slots = true;
  }
  for (const UnitPlacement& place : plan.units) {
    const auto& homes = place.optimizer_homes;
    state = state || std::find(homes.begin(), homes.end(), Tier::Device) != homes.end();
  }
  return state && some_need_slots;
}

/// Such homes are there only where they save bytes.
Result<Draft> place_with_best_homes(const PlacementRequest& request) {
  auto best = place_with_best_ring(request);
  if (!best.has_value() || !takes_slots(request, best->placement)) return best;
  PlacementRequest without = request;
  without.spare_device = false;
  auto other = place_with_best_ring(without);
  return other.has_value() && !(best->cost < other->cost) ? std::move(other) : std::move(best);
}

/// True if the update fetches upper halves from NVMe although memory has most of the optimizer
/// state. As long as it has not, there is better use for the room that splitting leaves.
bool fetches_halves_alone(const Placement& plan) noexcept {
  bool fetches = false;
  std::uint64_t on_nvme = 0;
  std::uint64_t all = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    fetches = fetches || (place.master == Master::Split && place.param == Tier::Nvme);
    on_nvme += plan.optimizer_bytes_in(Tier::Nvme, unit);
    all += plan.optimizer_bytes(unit);
  }
  return fetches && on_nvme <= all / 4;
}

/// Split master weights take less memory and fewer bytes; but where host memory has the state and
/// NVMe the parameters, the update would fetch for nothing what whole ones hold at hand.
Result<Draft> place_with_best_masters(const PlacementRequest& request) {
  auto best = place_with_best_homes(request);
  if (!best.has_value() || !fetches_halves_alone(best->placement)) return best;
  PlacementRequest whole = request;
  whole.split_master = false;
  auto other = place_with_best_homes(whole);
  return other.has_value() && other->cost < best->cost ? std::move(other) : std::move(best);
}

/// The space that swap files need.
Placement with_nvme_space(const Config& config, Placement plan) {
  const bool param_path = config.zero.offload_param.device == Offload::Nvme;
  std::uint64_t& params = param_path ? plan.nvme_param_bytes : plan.nvme_optimizer_bytes;
  params += plan.inputs.bytes_in(Tier::Nvme);
  for (std::uint32_t index = 0; index < plan.units.size(); ++index) {
    if (plan.units[index].param == Tier::Nvme) params += plan.param_bytes(index);
    if (plan.units[index].grad == Tier::Nvme) params += plan.grad_bytes(index);
    plan.nvme_optimizer_bytes += plan.optimizer_bytes_in(Tier::Nvme, index);
  }
  return plan;
}

}  // namespace

KeptInputs most_inputs(const PlacementRequest& request) {
  return inputs_within(request, request.host_bytes);
}

Result<Placement> make_placement(const PlacementRequest& request) {
  ARTESIAN_TRY(best, place_with_best_masters(request));
  const Draft draft = with_device_pool(request, std::move(best));
  Placement plan = with_nvme_space(*request.config, draft.placement);
  plan.notes = placement_notes(request, draft);
  return plan;
}

}  // namespace artesian::zero3
