#include "zero3/plan/homes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace artesian::zero3 {

using tiering::Route;
using tiering::Tier;

namespace {

Tier home_of(Offload device) noexcept {
  return device == Offload::None ? Tier::Device : device == Offload::Cpu ? Tier::Host : Tier::Nvme;
}

/// Split, except if the parameters are on a separate device and the state is in host memory: whole
/// weights are then nearer to the update, if there is room for them.
Master master_of(const PlacementRequest& request, const UnitPlacement& place,
                 bool param_on_device) noexcept {
  const DType dtype = request.config->param_dtype;
  if (dtype == DType::Float32) return Master::Parameter;
  const bool narrow = request.config->artesian.moments != DType::Float32;
  if (dtype != DType::BFloat16 || (!request.split_master && !narrow)) return Master::Own;
  // A record's arrays have equal widths, but whole weights are wider: Note [Records] in state.h.
  if (narrow) return Master::Split;
  const bool far = request.separate_device && place.optimizer == Tier::Host && param_on_device;
  return far && !request.split_far ? Master::Own : Master::Split;
}

UnitPlacement place_unit(const PlacementRequest& request, const Unit& unit) {
  const ZeroConfig& zero = request.config->zero;
  UnitPlacement place;
  place.param = unit.persistent ? Tier::Device : home_of(zero.offload_param.device);
  // If all ranks have all parameters, each would write what the others have updated.
  const bool whole = request.ranks > 1 && request.whole_params;
  if (whole && unit.trainable && place.param == Tier::Nvme) place.param = Tier::Host;
  // A frozen unit has no optimizer state, so its home does not matter.
  place.optimizer = unit.trainable ? home_of(zero.offload_optimizer.device) : Tier::Host;
  if (host_updates_all(request) && place.optimizer == Tier::Device) place.optimizer = Tier::Host;
  const bool all_on_device = zero.offload_param.device == Offload::None;
  place.master = unit.trainable ? master_of(request, place, all_on_device) : Master::None;
  const bool all_there = place.param == Tier::Device && place.optimizer == Tier::Device;
  if (request.separate_device && all_there) place = with_update_on_device(request, place);
  const bool as_stored = unit.as_stored && !request.separate_device;
  place.computed = as_stored ? request.config->param_dtype : request.compute_dtype;
  return place;
}

/// True if each rank sends its gradients once a step, as the host has held and summed them.
bool sends_once(const PlacementRequest& request) noexcept {
  const Config& config = *request.config;
  return config.artesian.reduction == Reduction::Fast &&
         (request.hooked || config.accumulation_steps > 1);
}

/// True if bytes pass between the ranks' devices.
bool exchanges_on_device(const PlacementRequest& request) noexcept {
  return request.device_group && request.separate_device && request.ranks > 1;
}

}  // namespace

bool host_updates_all(const PlacementRequest& request) noexcept {
  const Config& config = *request.config;
  const bool unknown_there = config.optimizer.type == OptimizerType::Lamb ||
                             config.optimizer.type == OptimizerType::Muon ||
                             config.artesian.moments != DType::Float32;
  // The host also adds what it sums and sends once a step.
  const bool through_host =
      request.ranks > 1 && (!exchanges_on_device(request) || sends_once(request));
  return request.separate_device && (through_host || unknown_there);
}

Placement assign_homes(const PlacementRequest& request, std::uint64_t persistent_max) {
  ARTESIAN_CHECK(request.parameters && request.stages && request.config);
  const Config& config = *request.config;
  const int stage = config.zero.stage;
  Placement plan;
  plan.separate_device = request.separate_device;
  plan.param_dtype = config.param_dtype;
  plan.grad_dtype = config.grad_accum_dtype;
  plan.compute_dtype = request.compute_dtype;
  plan.moments = moments_of(config.optimizer);
  plan.moment_dtype = config.artesian.moments;
  plan.measures = config.optimizer.type == OptimizerType::Lamb;
  ARTESIAN_CHECK(plan.moments.count() != 0);  // a record is never empty
  plan.ranks = request.ranks;
  plan.device_group = exchanges_on_device(request);
  PersistenceLimits limits{stage < 3 ? 0 : config.zero.param_persistence_threshold,
                           std::min(persistent_max, config.zero.model_persistence_threshold)};
  if (request.resident) {
    limits = {.param_numel_max = persistent_max, .model_numel_max = persistent_max};
  }
  const bool whole = config.optimizer.type == OptimizerType::Muon;
  plan.layout =
      make_layout(*request.parameters, *request.stages, limits, request.ranks,
                  whole ? Matrices::Apart : Matrices::Together,
                  request.whole_params || request.whole_frozen ? Frozen::Whole : Frozen::Cut);
  const auto& units = plan.layout.units;  // frozen ones may be whole
  plan.params_cut =
      stage >= 3 && !request.whole_params &&
      std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.is_cut(); });
  for (const Unit& unit : plan.layout.units) {
    plan.matrix_buffer_bytes = std::max(plan.matrix_buffer_bytes, matrix_bytes(unit));
  }
  for (const Unit& unit : plan.layout.units) plan.units.push_back(place_unit(request, unit));
  if (request.ranks > 1) {
    plan.exchange = exchange_buffers(plan.layout, *request.parameters,
                                     {.ranks = request.ranks,
                                      .hooked = request.hooked,
                                      .cut = plan.params_cut,
                                      .in_tiles = !request.hooked && !request.separate_device,
                                      .once = sends_once(request),
                                      .param_dtype = plan.param_dtype,
                                      .sent_dtype = config.communication_dtype,
                                      .grad_dtype = plan.grad_dtype,
                                      .on_device = exchanges_on_device(request),
                                      .hold_there = request.hold_there});
  }
  return with_routes(std::move(plan));
}

std::uint64_t persistent_numel(const Layout& layout) noexcept {
  std::uint64_t numel = 0;
  for (const Unit& unit : layout.units) numel += unit.persistent ? unit.numel : 0;
  return numel;
}

UnitPlacement with_param_on_device(const PlacementRequest& request, UnitPlacement place) {
  place.param = Tier::Device;
  if (place.master == Master::None) return place;
  place.master = master_of(request, place, /*param_on_device=*/true);
  return place;
}

UnitPlacement with_update_on_device(const PlacementRequest& request, UnitPlacement place) {
  ARTESIAN_CHECK(request.separate_device && place.param == Tier::Device);
  place.update = Route::OnDevice;
  place.grad = place.optimizer = Tier::Device;
  if (place.master != Master::None) place.master = master_of(request, place, true);
  return place;
}

}  // namespace artesian::zero3
