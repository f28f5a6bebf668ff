#include "zero3/plan/placement_notes.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "zero3/plan/candidates.h"
#include "zero3/plan/homes.h"
#include "zero3/plan/host_buffers.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

using Notes = std::vector<std::string>;

/// Elements of parameters that are meant for NVMe but are in `tier`. `elements_of`: of a unit.
template <typename Elements>
std::uint64_t kept_from_nvme(const PlacementRequest& request, const Placement& plan, Tier tier,
                             const Elements& elements_of) {
  if (request.config->zero.offload_param.device != Offload::Nvme) return 0;
  std::uint64_t elements = 0;
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    const Unit& unit = plan.layout.units[index];
    if (plan.units[index].param == tier && !unit.persistent) elements += elements_of(unit);
  }
  return elements;
}

/// Elements of all parameters that do not persist.
std::uint64_t streamed_numel(const Placement& plan) {
  std::uint64_t elements = 0;
  for (const Unit& unit : plan.layout.units) elements += unit.persistent ? 0 : unit.numel;
  return elements;
}

void note_device(const PlacementRequest& request, const Draft& draft, Notes& notes) {
  const Placement& plan = draft.placement;
  const std::uint64_t elements =
      kept_from_nvme(request, plan, Tier::Device, [](const Unit& unit) { return unit.numel; });
  if (elements != 0) {
    const bool slots_too = plan.param_dtype == plan.compute_dtype;
    notes.push_back(
        fmt::format("artesian.device_memory: {} elements of parameters stay on the device; a "
                    "smaller budget{} puts more on NVMe",
                    elements, slots_too ? ", or stage3_max_live_parameters," : ""));
  }
  const ZeroConfig& zero = request.config->zero;
  const std::uint64_t all = streamed_numel(plan);
  const bool meant_for_nvme = zero.offload_param.device == Offload::Nvme;
  const bool key_limits = zero.max_live_parameters < all && !draft.device_full;
  if (meant_for_nvme && plan.param_dtype == plan.compute_dtype && key_limits && elements < all) {
    notes.push_back(
        fmt::format("stage3_max_live_parameters: {} keeps {} elements of parameters off the "
                    "device, for which artesian.device_memory may have room; raise it, or leave "
                    "it out",
                    zero.max_live_parameters, all - elements));
  }
  if (draft.persistence_cut) {
    notes.push_back(
        fmt::format("stage3_param_persistence_threshold: only {} persistent elements fit in "
                    "artesian.device_memory; the rest are fetched",
                    persistent_numel(plan.layout)));
  }
}

void note_state(const char* key, std::uint64_t bytes, std::uint64_t all, const char* where,
                Notes& notes) {
  if (bytes == 0) return;
  const std::string share =
      bytes == all ? "all " + format_size(bytes) : format_size(bytes) + " of " + format_size(all);
  notes.push_back(key + (": " + share) + " of optimizer state stay " + where +
                  "; a smaller budget puts more on NVMe");
}

void note_residents(const PlacementRequest& request, const Placement& plan, Notes& notes) {
  std::uint64_t spilled = 0;
  std::uint64_t gradients = 0;
  std::uint64_t state = 0;
  std::uint64_t on_device = 0;  // the part on the device, among parameters meant for NVMe
  std::uint64_t in_host = 0;
  const bool meant_for_nvme = request.config->zero.offload_optimizer.device == Offload::Nvme;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    const std::uint64_t bytes = plan.grad_bytes(unit);
    if (place.grad != Tier::Device) gradients += bytes;
    if (place.grad == Tier::Nvme) spilled += bytes;
    state += plan.optimizer_bytes(unit);
    if (!meant_for_nvme) continue;
    on_device += plan.optimizer_bytes_in(Tier::Device, unit);
    in_host += plan.optimizer_bytes_in(Tier::Host, unit);
  }
  ARTESIAN_CHECK(spilled <= gradients, spilled, gradients);
  ARTESIAN_CHECK(on_device + in_host <= state, on_device, in_host, state);
  if (spilled != 0) {
    notes.push_back("artesian.host_memory: " + format_size(spilled) + " of " +
                    format_size(gradients) + " of gradients spill to NVMe");
  }
  const std::uint64_t elements = kept_from_nvme(
      request, plan, Tier::Host, [&](const Unit& unit) { return elements_of_a_share(plan, unit); });
  if (elements != 0) {
    notes.push_back(
        fmt::format("offload_param.max_in_cpu: {} elements of parameters stay in host memory; 0 "
                    "puts all on NVMe",
                    elements));
  }
  note_state("artesian.device_memory", on_device, state, "on the device", notes);
  note_state("artesian.host_memory", in_host, state, "in host memory", notes);
}

void note_inputs(const KeptInputs& inputs, Notes& notes) {
  if (!inputs.some()) return;
  const std::uint64_t rest = inputs.bytes_in(Tier::Device);
  notes.push_back(
      "activation_checkpointing.cpu_checkpointing: of the inputs that backward "
      "needs, " +
      format_size(inputs.bytes_in(Tier::Host)) + " are kept in host memory, " +
      format_size(inputs.bytes_in(Tier::Nvme)) + " on NVMe" +
      (rest == 0 ? std::string()
                 : ", " + format_size(rest) +
                       " where they are computed; raise artesian.host_memory, "
                       "or give offload_param an nvme_path"));
}

void note_host_updates(const PlacementRequest& request, Notes& notes) {
  const Config& config = *request.config;
  if (!host_updates_all(request) || config.zero.offload_optimizer.device != Offload::None) return;
  std::string why;
  if (config.artesian.moments != DType::Float32) {
    why = "with artesian.moments bf16";
  } else if (config.optimizer.type == OptimizerType::Lamb ||
             config.optimizer.type == OptimizerType::Muon) {
    why = fmt::format("with {}, which is computed by the CPU", type_name(config.optimizer));
  } else {
    why = fmt::format("with {} ranks, between which it goes", request.ranks);
  }
  notes.push_back("offload_optimizer: none is cpu beside a GPU " + why);
}

}  // namespace

Notes placement_notes(const PlacementRequest& request, const Draft& draft) {
  Notes notes;
  note_device(request, draft, notes);
  note_residents(request, draft.placement, notes);
  note_inputs(draft.placement.inputs, notes);
  note_host_updates(request, notes);
  return notes;
}

Error device_error(const PlacementRequest& request, const Placement& plan, const DeviceNeed& need,
                   std::uint64_t minimum) {
  ARTESIAN_CHECK(request.device_bytes < minimum, request.device_bytes, minimum);
  const char* way_out = "";
  if (request.resident) {
    way_out = ", or set zero_optimization.stage to 3, which gathers parameters as they are used";
  } else if (need.fixed > need.stage) {
    way_out = ", or offload_param / offload_optimizer to cpu or nvme";
  }
  return make_error(
      ErrorCode::Exhausted,
      fmt::format(
          "artesian.device_memory: got {}, allowed at least {} bytes ({}): {} bytes missing for {} "
          "of parameters of \"{}\", {} of gradients and {} kept on the device; raise it{}",
          format_size(request.device_bytes), minimum, format_size(minimum),
          minimum - request.device_bytes, format_size(need.stage), need.largest_stage,
          format_size(plan.device_gradient_bytes), format_size(need.fixed), way_out));
}

Error host_error(const PlacementRequest& request, const Placement& plan, std::uint64_t must) {
  const HostBuffers buffers(plan, *request.config);
  const std::uint64_t ring = buffers.item_bytes(image_alignment);  // 0 if no ring is needed
  const std::uint64_t minimum = must + ring + buffers.staging_min(image_alignment);
  const std::uint64_t missing = minimum > request.host_bytes ? minimum - request.host_bytes : 0;
  const bool nvme = any_nvme(*request.config);
  return make_error(
      ErrorCode::Exhausted,
      fmt::format(
          "artesian.host_memory: got {}, allowed at least {} bytes ({}): {} bytes missing for what "
          "offload to cpu keeps there{}{}; raise it, or offload_param / offload_optimizer to nvme",
          format_size(request.host_bytes), minimum, format_size(minimum), missing,
          nvme ? " and one stage's gradients" : " and the gradients",
          plan.matrix_buffer_bytes != 0 ? ", and for Muon's update of the largest matrix" : ""));
}

}  // namespace artesian::zero3
