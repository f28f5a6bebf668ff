#include "zero3/plan/device_tier.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "kernels/gradient.h"
#include "zero3/plan/homes.h"
#include "zero3/plan/host_buffers.h"
#include "zero3/plan/placement_notes.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

constexpr std::uint64_t device_buffer_bytes = 1 << 20;  // for pieces to expand
constexpr std::uint64_t gradient_scratch_min = 64 << 10;
constexpr std::uint64_t gradient_scratch_max = 4 << 20;

std::uint64_t slot_bytes(const Placement& plan, std::size_t unit) {
  return plan.layout.units[unit].image * dtype_size(plan.units[unit].computed);
}

bool expands(const Placement& plan) noexcept {
  return plan.param_dtype != plan.compute_dtype;
}

/// Bytes of slots for this many elements; at most `all`.
std::uint64_t slots_of(const Placement& plan, std::uint64_t elements, std::uint64_t all) {
  const std::uint64_t size = dtype_size(plan.compute_dtype);
  return elements >= all / size ? all : elements * size;
}

/// The most bytes of slots at any time: kept and prefetched units, plus one demand.
std::uint64_t slots_max(const PlacementRequest& request, const Placement& plan,
                        const DeviceNeed& need) {
  const std::uint64_t live = request.config->zero.max_live_parameters;
  return std::min(need.all, page_up(slots_of(plan, live, need.all)) + need.stage);
}

/// Returns the bytes of each stage's gradients in the compute dtype.
std::vector<std::uint64_t> gradients_of_stages(const PlacementRequest& request) {
  std::vector<std::uint64_t> bytes;
  for (const StageSpec& stage : *request.stages) {
    std::uint64_t numel = 0;
    for (const auto parameter : graph_parameters(stage)) {
      const ParameterSpec& spec = (*request.parameters)[parameter];
      if (!spec.trainable) continue;
      if (request.separate_device || !spec.tiled) numel += spec.numel();
    }
    bytes.push_back(page_up(numel * dtype_size(request.compute_dtype)));
  }
  return bytes;
}

/// Returns the most bytes that autograd and gradients waiting for the host hold at any time. On a
/// separate device a stage's gradients wait while the next one is computed, or a sum of
/// micro-batches waits for the next of them; if the device sums gradients, both.
std::uint64_t gradients_at_once(const PlacementRequest& request, const Placement& plan) {
  const std::vector<std::uint64_t> stages = gradients_of_stages(request);
  const std::uint64_t largest = *std::max_element(stages.begin(), stages.end());
  if (!request.separate_device) return largest;
  std::uint64_t most = 2 * largest;
  const bool sums = request.config->accumulation_steps > 1 && plan.sums_as_accumulated();
  for (std::size_t stage = 0; sums && stage + 1 < stages.size(); ++stage) {
    most = std::max(most, stages[stage + 1] + 2 * stages[stage]);
  }
  return most;
}

DeviceNeed device_need(const PlacementRequest& request, const Placement& plan) {
  ARTESIAN_CHECK(!plan.layout.stages.empty() && plan.units.size() == plan.layout.units.size());
  DeviceNeed need;
  need.fixed = plan.device_homes();
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    const Unit& unit = plan.layout.units[index];
    if (plan.units[index].aliased()) continue;
    (unit.persistent ? need.fixed : need.all) += slot_bytes(plan, index);
  }
  std::vector<bool> taken(plan.units.size(), false);
  const auto slots_of_stage = [&](std::size_t stage) {
    std::uint64_t bytes = 0;
    for (const auto index : plan.layout.stages[stage]) {
      const Unit& unit = plan.layout.units[index];
      const bool own = !plan.units[index].aliased() && !unit.persistent && !taken[index];
      bytes += own ? slot_bytes(plan, index) : 0;
    }
    return bytes;
  };
  std::size_t largest = 0;
  for (std::size_t stage = 0; stage < plan.layout.stages.size(); ++stage) {
    const std::uint64_t bytes = slots_of_stage(stage);
    if (bytes < need.stage) continue;
    need.stage = bytes;
    largest = stage;
  }
  need.largest_stage = (*request.stages)[largest].name;
  for (const auto index : plan.layout.stages[largest]) taken[index] = true;
  for (std::size_t stage = 0; stage < plan.layout.stages.size(); ++stage) {
    need.next = std::max(need.next, slots_of_stage(stage));
  }
  ARTESIAN_CHECK(need.next <= need.stage && need.stage <= need.all, need.next, need.stage);
  return need;
}

/// The minimal size of the tier.
std::uint64_t minimum_of(const Placement& plan, const DeviceNeed& need) {
  return need.fixed + need.stage + plan.device_gradient_bytes;
}

/// A unit's sums of squares are copied to the host together, up to a limit, as the host waits for
/// each copy.
std::uint64_t gradient_scratch(const Placement& plan, std::size_t unit) {
  const std::uint64_t leaves = plan.layout.units[unit].image / kernels::norm_leaf;
  const std::uint64_t bytes =
      std::max<std::uint64_t>(leaves * sizeof(double), gradient_scratch_min);
  return std::min(page_up(bytes), gradient_scratch_max);
}

std::uint64_t gradient_scratch(const Placement& plan) {
  std::uint64_t bytes = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (!plan.units[unit].updated_on_device()) continue;
    bytes = std::max(bytes, gradient_scratch(plan, unit));
  }
  return bytes;
}

Placement with_device_buffers(const PlacementRequest& request, Placement plan) {
  plan.device_gradient_bytes = gradients_at_once(request, plan);
  if (!request.separate_device) return plan;
  plan.expansion_bytes = expands(plan) ? device_buffer_bytes : 0;
  plan.grad_scratch_bytes = gradient_scratch(plan);
  return plan;
}

/// Places units that compute reads in their stored dtype in the device tier, if all others are
/// expanded: each also saves a slot.
Placement with_tables_on_device(const PlacementRequest& request, std::uint64_t room,
                                Placement plan) {
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    UnitPlacement& place = plan.units[index];
    if (place.param == Tier::Device || place.computed != plan.param_dtype) continue;
    const UnitPlacement before = place;
    place = with_param_on_device(request, before);
    plan = with_routes(std::move(plan));
    const DeviceNeed need = device_need(request, plan);
    if (need.fixed + need.stage + need.next > room) plan.units[index] = before;
  }
  return with_routes(std::move(plan));
}

/// Gives parameters meant for NVMe a home in device memory if there is room beside the slots, in
/// order of first use: a slot saves fetches, while a home also saves the update's reads and writes.
/// Slots must remain for the stage that needs the most, and for one more stage that is prefetched;
/// homes that compute reads directly need no slots. Not done if ranks divide the parameters, nor on
/// a separate device whose kernels would have to expand them.
Draft with_params_on_device(const PlacementRequest& request, Draft draft) {
  const ZeroConfig& zero = request.config->zero;
  const bool meant_for_nvme = zero.offload_param.device == Offload::Nvme;
  Placement& plan = draft.placement;
  if (plan.params_cut || (expands(plan) && request.separate_device)) return draft;
  if (!meant_for_nvme || !request.spare_device) return draft;
  if (expands(plan)) plan = with_tables_on_device(request, draft.device_room, std::move(plan));
  const DeviceNeed need = device_need(request, plan);
  ARTESIAN_CHECK(need.fixed <= draft.device_room, need.fixed, draft.device_room);
  std::uint64_t left = draft.device_room - need.fixed;
  const bool room_is_short = left < slots_of(plan, zero.max_live_parameters, need.all);
  if (!expands(plan)) left = std::min(left, slots_of(plan, zero.max_live_parameters, need.all));
  if (expands(plan) || left < need.all) left -= std::min(left, need.stage + need.next);
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    UnitPlacement& place = plan.units[index];
    const bool updated_there = request.separate_device && place.optimizer == Tier::Device;
    const std::uint64_t bytes = plan.param_bytes(static_cast<std::uint32_t>(index));
    if (place.param == Tier::Device || updated_there) continue;
    if (bytes > left) {
      draft.device_full = room_is_short;
      continue;
    }
    left -= bytes;
    place = with_param_on_device(request, place);
  }
  plan = with_routes(std::move(plan));
  return draft;
}

/// True if spare device memory may hold state that is meant for NVMe.
bool may_keep_state_on_device(const PlacementRequest& request) noexcept {
  return request.spare_device && request.config->zero.offload_optimizer.device == Offload::Nvme;
}

/// Units whose parameters are on the device and whose state is not, smallest first, ties in order
/// of first use.
std::vector<std::uint32_t> units_to_update_there(const Placement& plan) {
  std::vector<std::uint32_t> units;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    const bool there = place.param == Tier::Device && !place.updated_on_device();
    if (there && place.master != Master::None) units.push_back(unit);
  }
  std::stable_sort(units.begin(), units.end(), [&](std::uint32_t a, std::uint32_t b) {
    return plan.layout.units[a].image < plan.layout.units[b].image;
  });
  return units;
}

/// Uses memory of a separate device, beside slots and parameters, for gradients and optimizer state
/// of units, which the device then updates itself. A unit is moved completely or not at all, as a
/// part on the device that the host updates would cross the bus twice. The order is chosen so that
/// more memory only adds units, which leaves less to the host; nothing is moved if parameters lack
/// room.
Draft with_updates_on_device(const PlacementRequest& request, Draft draft) {
  if (!request.separate_device || !may_keep_state_on_device(request)) return draft;
  if (host_updates_all(request)) return draft;
  if (draft.device_full) return draft;
  Placement& plan = draft.placement;
  const DeviceNeed need = device_need(request, plan);
  const std::uint64_t taken = need.fixed + need.stage + need.next;
  std::uint64_t left = draft.device_room - std::min(draft.device_room, taken);
  for (const std::uint32_t unit : units_to_update_there(plan)) {
    UnitPlacement& place = plan.units[unit];
    const UnitPlacement before = place;
    place = with_update_on_device(request, before);
    const std::uint64_t scratch = std::max(plan.grad_scratch_bytes, gradient_scratch(plan, unit));
    const std::uint64_t bytes =
        plan.grad_bytes(unit) + plan.optimizer_bytes(unit) + scratch - plan.grad_scratch_bytes;
    if (bytes > left) {
      place = before;
      break;
    }
    left -= bytes;
    plan.grad_scratch_bytes = scratch;
  }
  plan = with_routes(std::move(plan));
  return draft;
}

/// Fills the device tier: memory left by homes and slots holds optimizer state.
Draft fill_device(const PlacementRequest& request, Placement plan) {
  ARTESIAN_CHECK(plan.device_gradient_bytes <= request.device_bytes, plan.device_gradient_bytes);
  Draft draft;
  draft.device_room = round_down(request.device_bytes - plan.device_gradient_bytes, 4096);
  draft.placement = std::move(plan);
  draft = with_updates_on_device(request, with_params_on_device(request, std::move(draft)));
  const DeviceNeed need = device_need(request, draft.placement);
  ARTESIAN_CHECK(need.fixed + need.stage <= draft.device_room, need.fixed, need.stage);
  // Memory that may hold state is not available for slots, whose moves depend on it.
  const std::uint64_t slots = std::min(draft.device_room - need.fixed, need.stage + need.next);
  if (may_keep_state_on_device(request) && !request.separate_device) {
    draft.device_spare = draft.device_room - need.fixed - slots;
  }
  draft.placement.device_pool_bytes =
      std::min(draft.device_room - draft.device_spare,
               need.fixed + slots_max(request, draft.placement, need));
  return draft;
}

Result<Draft> place_as_asked(const PlacementRequest& request) {
  std::uint64_t persistent_max = 0;
  for (const auto& parameter : *request.parameters) persistent_max += parameter.numel();
  for (bool cut = false;; cut = true) {
    Placement plan = with_device_buffers(request, assign_homes(request, persistent_max));
    const DeviceNeed need = device_need(request, plan);
    const std::uint64_t minimum = minimum_of(plan, need);
    const std::uint64_t persistent = persistent_numel(plan.layout);
    if (minimum <= request.device_bytes) {
      Draft draft = fill_device(request, std::move(plan));
      draft.persistence_cut = cut;
      return draft;
    }
    if (persistent == 0 || request.resident) return device_error(request, plan, need, minimum);
    persistent_max = persistent / 2;
  }
}

}  // namespace

Result<Draft> place_in_device(const PlacementRequest& request) {
  auto placed = place_as_asked(request);
  const bool other = request.hooked && request.device_group && request.hold_there;
  if (placed.has_value() || !other) return placed;
  PlacementRequest in_host = request;
  in_host.hold_there = false;
  return place_as_asked(in_host);
}

Draft with_device_pool(const PlacementRequest& request, Draft draft) {
  const DeviceNeed need = device_need(request, draft.placement);
  ARTESIAN_CHECK(need.fixed <= draft.device_room, need.fixed, draft.device_room);
  draft.placement.device_pool_bytes =
      std::min(draft.device_room, need.fixed + slots_max(request, draft.placement, need));
  return draft;
}

}  // namespace artesian::zero3
