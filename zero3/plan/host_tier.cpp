#include "zero3/plan/host_tier.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "zero3/plan/candidates.h"
#include "zero3/plan/host_buffers.h"
#include "zero3/plan/placement_notes.h"
#include "zero3/plan/residents.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

/// The minimal host memory through which inputs are written to NVMe.
std::uint64_t input_buffers_min(const PlacementRequest& request, const KeptInputs& inputs) {
  return any_nvme(*request.config) && inputs.some() ? 4096 : 0;
}

/// The most that these buffers may take of `room`; changes smoothly with it, like
/// HostBuffers::staging_share().
std::uint64_t input_buffers_share(const PlacementRequest& request, const KeptInputs& inputs,
                                  std::uint64_t room) {
  if (input_buffers_min(request, inputs) == 0) return 0;
  return std::min(room / 8, input_buffers_max(inputs));
}

/// Called once the homes of inputs are known.
Placement with_input_buffers(const PlacementRequest& request, std::uint64_t room, Placement plan) {
  if (plan.inputs.bytes_in(Tier::Nvme) == 0) return plan;
  size_input_buffers(plan.inputs, input_buffers_min(request, plan.inputs) +
                                      input_buffers_share(request, plan.inputs, room));
  plan.host_pool_bytes += plan.inputs.buffer_bytes();
  return plan;
}

/// Keeps as many inputs in host memory as fit, if nothing is on NVMe.
Placement with_inputs_in_host(const PlacementRequest& request, std::uint64_t spare,
                              Placement plan) {
  plan.inputs = inputs_within(request, spare);
  auto inputs = input_candidates(plan.inputs, *request.config);
  for (const Candidate& kept : choose_residents(std::move(inputs), {spare, 0})) {
    plan.host_pool_bytes += kept.bytes;
    plan.inputs.homes[static_cast<std::size_t>(kept.sub_group)] = Tier::Host;
  }
  return plan;
}

/// Returns the bytes that must be in host memory, apart from the buffers.
std::uint64_t host_homes(const PlacementRequest& request, const Placement& plan) {
  std::uint64_t bytes = page_up(plan.exchange.bytes()) + page_up(plan.matrix_buffer_bytes);
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    if (place.param == Tier::Host) bytes += plan.param_bytes(unit);
    if (place.optimizer == Tier::Host) bytes += plan.optimizer_bytes(unit);
    const bool stays = place.grad != Tier::Device && !any_nvme(*request.config);
    if (stays) bytes += plan.grad_bytes(unit);
  }
  return bytes;
}

/// The buffer in which one stage's gradients are added, if gradients spill.
std::uint64_t grad_buffer(const PlacementRequest& request, const Placement& plan) {
  return any_nvme(*request.config) ? plan.largest_stage_grad_bytes() : 0;
}

void set_optimizer_home(Placement& plan, const Candidate& state, Tier home) {
  UnitPlacement& place = plan.units[state.unit];
  place.optimizer_homes.resize(static_cast<std::size_t>(plan.sub_group_count(state.unit)),
                               place.optimizer);
  const auto index = static_cast<std::size_t>(state.sub_group);
  ARTESIAN_CHECK(index < place.optimizer_homes.size(), state.unit, index);
  // Not moved twice.
  ARTESIAN_CHECK(place.optimizer_homes[index] == place.optimizer, state.unit, index);
  place.optimizer_homes[index] = home;
}

/// Gives spare device memory to state, and adds the rest to `candidates`. The cost is the traffic
/// of all candidates.
Draft with_state_on_device(const PlacementRequest& request, Draft draft,
                           std::vector<Candidate>& candidates) {
  std::uint64_t spare = draft.device_spare;
  const auto state = state_candidates(draft.placement, request, draft.cost.first);
  candidates.reserve(candidates.size() + state.size());
  for (const Candidate& each : state) {
    if (each.bytes > spare) {
      candidates.push_back(each);
      continue;
    }
    spare -= each.bytes;
    set_optimizer_home(draft.placement, each, Tier::Device);
  }
  draft.cost.second = 0;
  for (const Candidate& each : candidates) draft.cost.second += each.bytes * each.moves;
  return draft;
}

/// Moves a home from NVMe to host memory.
void move_to_host(Tier& home) {
  ARTESIAN_CHECK(home == Tier::Nvme, static_cast<int>(home));
  home = Tier::Host;
}

/// Gives residents homes in host memory, and the other candidates homes on NVMe.
Draft with_residents(Draft draft, const std::vector<Candidate>& residents) {
  Placement plan = std::move(draft.placement);
  for (UnitPlacement& place : plan.units) {
    if (place.grad != Tier::Device && place.master != Master::None) place.grad = Tier::Nvme;
  }
  for (const Candidate& resident : residents) {
    plan.host_pool_bytes += resident.bytes;
    const std::uint64_t saved = resident.bytes * resident.moves;
    ARTESIAN_CHECK(saved <= draft.cost.second, saved, draft.cost.second);
    draft.cost.second -= saved;
    switch (resident.kind) {
      case ResidentKind::Gradient: move_to_host(plan.units[resident.unit].grad); break;
      case ResidentKind::Parameter: move_to_host(plan.units[resident.unit].param); break;
      case ResidentKind::Input:
        move_to_host(plan.inputs.homes[static_cast<std::size_t>(resident.sub_group)]);
        break;
      case ResidentKind::OptimizerState: set_optimizer_home(plan, resident, Tier::Host); break;
    }
  }
  draft.placement = with_routes(std::move(plan));
  return draft;
}

/// Plans without a ring, if nothing remains on NVMe; nothing if `room` is too small for that.
std::optional<Draft> without_ring(const PlacementRequest& request, const Draft& draft,
                                  std::vector<Candidate> candidates, std::uint64_t room) {
  if (bytes_left(draft.placement, candidates, room, draft.device_spare) != 0) return std::nullopt;
  Draft whole = with_state_on_device(request, draft, candidates);
  std::uint64_t elements = request.config->zero.offload_param.max_in_cpu;
  for (const Candidate& each : candidates) {
    if (each.bytes > room || each.elements > elements) return std::nullopt;
    room -= each.bytes;
    elements -= each.elements;
  }
  return with_residents(std::move(whole), candidates);
}

std::vector<UnitMoves> moves_of(const PlacementRequest& request, const Placement& plan) {
  return moves_of_a_pass(plan, *request.stages, PrefetchLimits::of(request.config->zero));
}

/// The largest host budget with a ring one size smaller, if that may be better: it leaves less than
/// the minimal room for this one, which may exceed `spare`, or fit better. `must`: bytes below the
/// buffers' room; `spare`: what the ring leaves of that room for residents.
std::optional<std::uint64_t> budget_of_a_smaller_ring(const PlacementRequest& request,
                                                      const Placement& plan, std::uint64_t must,
                                                      std::uint64_t spare) {
  const HostBuffers buffers(plan, *request.config);
  ARTESIAN_CHECK(must <= request.host_bytes, must, request.host_bytes);
  const std::uint64_t room = request.host_bytes - must;
  const std::uint64_t ring = plan.ring_count * plan.ring_item_bytes;
  const std::uint64_t total = ring + buffers.staging_min(plan.sub_group);
  const std::uint64_t record = plan.record_bytes_max(plan.sub_group);
  std::uint64_t least = total <= room / 4 ? 4 * total : total;
  std::uint64_t below = least;  // bounds the bytes left over
  // For a ring that was lengthened, the next size is one item shorter.
  if (plan.ring_count > buffers.ring_count_min()) {
    least = 8 * ring;
    below = least - ring + plan.ring_item_bytes;
  }
  below += grad_buffer(request, plan);  // if no gradient spills with this budget
  if (spare < below + record) return must + least - 1;
  return std::nullopt;
}

/// Gives the `spare` bytes to candidates; if gradients spill, minus the buffer in which they are
/// added.
HostTier fill_host(const PlacementRequest& request, Draft draft, std::vector<Candidate> candidates,
                   std::uint64_t spare, std::optional<Cost> to_beat) {
  Placement& plan = draft.placement;
  const bool spills = gradient_bytes(candidates) > spare;
  if (spills) plan.grad_buffer_bytes = grad_buffer(request, plan);
  plan.host_pool_bytes += plan.grad_buffer_bytes;
  ARTESIAN_CHECK(plan.grad_buffer_bytes <= spare, plan.grad_buffer_bytes, spare);
  const ResidentLimits limits{spare - plan.grad_buffer_bytes,
                              request.config->zero.offload_param.max_in_cpu};
  draft.cost = {spills, bytes_left(plan, candidates, limits.bytes, draft.device_spare)};
  const bool beaten = to_beat.has_value() && !(draft.cost < *to_beat);
  if (beaten) return {.draft = std::move(draft), .beaten = true};
  draft = with_state_on_device(request, std::move(draft), candidates);
  draft = with_residents(std::move(draft), choose_residents(std::move(candidates), limits));
  return {.draft = std::move(draft)};
}

}  // namespace

KeptInputs inputs_within(const PlacementRequest& request, std::uint64_t host_room) {
  const Config& config = *request.config;
  if (!config.cpu_checkpointing || request.input_elements.empty()) return {};
  std::vector<std::uint64_t> elements = request.input_elements;  // the inputs that backward needs
  const auto below = first_trainable_stage(*request.parameters, *request.stages);
  std::fill_n(elements.begin(), std::min(below, elements.size()), std::uint64_t{0});
  return describe_inputs({.stages = request.stages,
                          .elements = &elements,
                          .element_size = dtype_size(request.compute_dtype),
                          .micro_batches = config.accumulation_steps,
                          .activation_bytes = request.activation_bytes,
                          .nvme = any_nvme(config)},
                         host_room);
}

Result<HostTier> place_in_host(const PlacementRequest& request, Draft draft,
                               std::optional<Cost> to_beat) {
  Placement& plan = draft.placement;
  const HostBuffers buffers(plan, *request.config);
  const bool nvme = any_nvme(*request.config);
  plan.inputs = most_inputs(request);
  plan.host_pool_bytes = host_homes(request, plan);
  const std::uint64_t buffer = grad_buffer(request, plan);
  const std::uint64_t must =
      plan.host_pool_bytes + input_buffers_min(request, plan.inputs) + buffer;
  if (must > request.host_bytes) return host_error(request, plan, must);
  const std::uint64_t room = request.host_bytes - must;
  std::vector<Candidate> candidates;
  if (nvme && !request.separate_device) {
    plan.sub_group = buffers.largest_sub_group();
    candidates = candidates_but_state(plan, *request.config, moves_of(request, plan));
    auto whole = without_ring(request, draft, candidates, room + buffer);
    if (whole.has_value()) return HostTier{.draft = std::move(*whole)};
  }
  const auto ring = buffers.ring_within(room);
  if (!ring.has_value()) return host_error(request, plan, must);
  plan.sub_group = ring->sub_group;
  plan.ring_item_bytes = ring->item_bytes;
  plan.ring_count = ring->count;
  const std::uint64_t rest = room - ring->bytes() - buffers.staging_min(ring->sub_group);
  const Staging staging = buffers.staging_within(rest, ring->sub_group);
  plan.staging_bytes = staging.bytes;
  plan.param_staging_count = staging.param_count;
  plan.grad_staging_count = staging.grad_count;
  plan.host_pool_bytes += ring->bytes() + staging.all_bytes();
  const std::uint64_t spare = rest - buffers.staging_share(rest, ring->sub_group) -
                              input_buffers_share(request, plan.inputs, rest);
  if (!nvme) {
    plan = with_inputs_in_host(request, spare, std::move(plan));
    return HostTier{.draft = std::move(draft)};
  }
  if (candidates.empty()) {  // the buffers depend on the ring only with a separate device
    candidates = candidates_but_state(plan, *request.config, moves_of(request, plan));
  }
  HostTier tier =
      fill_host(request, std::move(draft), std::move(candidates), spare + buffer, to_beat);
  Placement& filled = tier.draft.placement;
  tier.budget_of_a_smaller_ring =
      budget_of_a_smaller_ring(request, filled, must, spare + buffer - filled.grad_buffer_bytes);
  filled = with_input_buffers(request, rest, std::move(filled));
  return tier;
}

}  // namespace artesian::zero3
