// Runs the passes of draft.h, for several requests if none is known to be best, and takes the plan
// that moves the fewest bytes.
#include "zero3/plan/make_placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "zero3/plan/device_tier.h"
#include "zero3/plan/host_tier.h"
#include "zero3/plan/placement_notes.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

/// The ring grows in large steps, at the cost of residents: Note [More memory, never more bytes].
/// If residents would save less than just below such a step, the smaller ring is kept.
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

/// True if spare device memory holds homes instead of slots, in which parameters could stay
/// gathered.
bool takes_slots(const PlacementRequest& request, const Placement& plan) noexcept {
  const ZeroConfig& zero = request.config->zero;
  if (zero.offload_param.device != Offload::Nvme) return false;
  const bool state_spare = zero.offload_optimizer.device == Offload::Nvme;
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
    state = state || (state_spare && place.updated_on_device()) ||
            std::find(homes.begin(), homes.end(), Tier::Device) != homes.end();
  }
  return state && some_need_slots;
}

/// Keeps such homes only if they save bytes or, on a separate device that updates some units
/// itself, if slots would not save more.
Result<Draft> place_with_best_homes(const PlacementRequest& request) {
  auto best = place_with_best_ring(request);
  if (!best.has_value() || !takes_slots(request, best->placement)) return best;
  PlacementRequest without = request;
  without.spare_device = false;
  auto other = place_with_best_ring(without);
  if (!other.has_value() || best->cost < other->cost) return best;
  const bool stays = request.separate_device && best->cost == other->cost;
  return stays ? std::move(best) : std::move(other);
}

/// True if the update fetches upper halves from NVMe although most of the optimizer state is in
/// memory. As long as it is not, the room saved by splitting has better uses.
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

/// Whole master weights are nearer to an update whose parameters are on a separate device. If host
/// memory is too small for them, or they displace other state to NVMe, halves cross the bus.
Result<Draft> place_with_nearest_masters(const PlacementRequest& request) {
  auto best = place_with_best_homes(request);
  if (!request.separate_device || !request.split_master) return best;
  if (best.has_value() && best->cost == Cost{}) return best;
  PlacementRequest split = request;
  split.split_far = true;
  auto other = place_with_best_homes(split);
  const bool better = best.has_value() ? other.has_value() && other->cost < best->cost : true;
  return better ? std::move(other) : std::move(best);
}

/// Split master weights need less memory and fewer bytes. But if state is in host memory and
/// parameters are on NVMe, the update would fetch halves that whole weights already have in memory.
Result<Draft> place_with_best_masters(const PlacementRequest& request) {
  auto best = place_with_nearest_masters(request);
  if (!best.has_value() || !fetches_halves_alone(best->placement)) return best;
  PlacementRequest whole = request;
  whole.split_master = false;
  auto other = place_with_best_homes(whole);
  return other.has_value() && other->cost < best->cost ? std::move(other) : std::move(best);
}

/// Adds the space that swap files need.
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

/// Adds memory for the old state of units updated before the norm is known.
Placement with_old_state(const PlacementRequest& request, Placement plan) {
  const Config& config = *request.config;
  const bool ahead = waits_for_norm(config) && may_update_under_backward(config);
  if (!request.separate_device || !ahead) return plan;
  ARTESIAN_CHECK(plan.host_pool_bytes <= request.host_bytes, plan.host_pool_bytes);
  const std::uint64_t room = request.host_bytes - plan.host_pool_bytes;
  plan.old_state_bytes = old_state_within(plan, *request.stages, room);
  plan.host_pool_bytes += plan.old_state_bytes;
  return plan;
}

/// Checks that each sub-group of a unit's state has one home, and that the routes fit the homes.
void check_unit(const Placement& plan, std::uint32_t unit) {
  const UnitPlacement& place = plan.units[unit];
  const bool trainable = plan.layout.units[unit].trainable;
  ARTESIAN_CHECK(trainable == (place.master != Master::None), unit, trainable);
  std::uint64_t state = 0;
  for (const Tier tier : {Tier::Device, Tier::Host, Tier::Nvme}) {
    state += plan.optimizer_bytes_in(tier, unit);
  }
  ARTESIAN_CHECK(state == plan.optimizer_bytes(unit), unit, state, plan.optimizer_bytes(unit));
  ARTESIAN_CHECK(tiering::ends_at_device(place.gather) == plan.separate_device, unit);
  ARTESIAN_CHECK(tiering::ends_at_device(place.gradient) == plan.separate_device, unit);
  if (place.updated_on_device()) {
    const bool there = place.param == Tier::Device && place.grad == Tier::Device;
    ARTESIAN_CHECK(plan.separate_device && there && place.optimizer == Tier::Device, unit);
  }
  if (!trainable || place.grad != Tier::Nvme) return;
  ARTESIAN_CHECK(plan.grad_bytes(unit) <= plan.grad_buffer_bytes, unit, plan.grad_buffer_bytes);
}

/// Checks that no budget is exceeded, that homes fit into the pools, and that there are buffers for
/// everything that needs them.
void check_placement(const PlacementRequest& request, const Placement& plan) {
  ARTESIAN_CHECK(plan.units.size() == plan.layout.units.size(), plan.units.size());
  ARTESIAN_CHECK(plan.sub_group != 0 && plan.sub_group % image_alignment == 0, plan.sub_group);
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) check_unit(plan, unit);
  ARTESIAN_CHECK(plan.device_homes() <= plan.device_pool_bytes, plan.device_homes());
  ARTESIAN_CHECK(plan.device_pool_bytes + plan.device_gradient_bytes <= request.device_bytes,
                 plan.device_pool_bytes, plan.device_gradient_bytes, request.device_bytes);
  ARTESIAN_CHECK(plan.host_pool_bytes <= request.host_bytes, plan.host_pool_bytes);
  const std::uint64_t staging =
      plan.staging_bytes * (plan.param_staging_count + plan.grad_staging_count);
  ARTESIAN_CHECK((staging != 0) == plan.separate_device, staging);
  const std::uint64_t buffers = plan.ring_count * plan.ring_item_bytes + staging +
                                plan.grad_buffer_bytes + plan.old_state_bytes +
                                plan.matrix_buffer_bytes + plan.exchange.bytes() +
                                plan.inputs.buffer_bytes();
  ARTESIAN_CHECK(buffers <= plan.host_pool_bytes, buffers, plan.host_pool_bytes);
  ARTESIAN_CHECK((plan.ring_count == 0) == (plan.ring_item_bytes == 0), plan.ring_count);
  const std::uint64_t on_nvme = plan.nvme_optimizer_bytes + plan.nvme_param_bytes;
  ARTESIAN_CHECK(on_nvme == 0 || plan.ring_count != 0, on_nvme);
  const bool inputs_move = plan.inputs.bytes_in(Tier::Nvme) != 0;
  ARTESIAN_CHECK(inputs_move == (plan.inputs.buffer_count != 0), plan.inputs.buffer_count);
}

}  // namespace

namespace {

/// Refuses combinations that are not implemented.
Result<void> check_optimizer(const PlacementRequest& request) {
  const OptimizerConfig& optimizer = request.config->optimizer;
  if (optimizer.type != OptimizerType::Muon || request.ranks == 1) return {};
  return make_error(
      ErrorCode::Unsupported,
      fmt::format("optimizer.type: got \"{}\", which is not supported yet with several "
                  "ranks, whose shares would cut matrices; train with one, or with "
                  "another optimizer",
                  type_name(optimizer)));
}

}  // namespace

KeptInputs most_inputs(const PlacementRequest& request) {
  return inputs_within(request, request.host_bytes);
}

Result<Placement> make_placement(const PlacementRequest& request) {
  ARTESIAN_TRY_VOID(check_optimizer(request));
  ARTESIAN_TRY(best, place_with_best_masters(request));
  const Draft draft = with_device_pool(request, std::move(best));
  Placement plan = with_nvme_space(*request.config, draft.placement);
  plan = with_old_state(request, std::move(plan));
  check_placement(request, plan);
  plan.notes = placement_notes(request, draft);
  return plan;
}

}  // namespace artesian::zero3
