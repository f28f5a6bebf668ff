#include "zero3/placement.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

constexpr std::uint64_t sub_group_max = 262144;         // elements: an fp32 block is then 1 MiB
constexpr std::uint64_t staging_bytes_max = 4 << 20;    // of one copy to or from a device
constexpr std::uint64_t device_buffer_bytes = 1 << 20;  // for pieces to expand
constexpr std::uint64_t gradient_scratch_bytes = 64 << 10;
constexpr std::uint32_t grad_staging_count_max = 4;

Tier home_of(Offload device) noexcept {
  return device == Offload::None ? Tier::Device : device == Offload::Cpu ? Tier::Host : Tier::Nvme;
}

/// Pools hand out multiples of 4096 bytes.
std::uint64_t page_up(std::uint64_t bytes) noexcept {
  return round_up(bytes, 4096);
}

class Planner {
 public:
  explicit Planner(const PlacementRequest& request) : request_(request), config_(*request.config) {
    plan_.param_dtype = config_.param_dtype;
    plan_.grad_dtype = config_.grad_accum_dtype;
    plan_.compute_dtype = request.compute_dtype;
    plan_.states = config_.param_dtype == DType::Float32 ? 2 : 3;
    const int stage = config_.zero.stage;
    plan_.sharding = {.param = stage >= 3 ? request.ranks : 1,
                      .grad = stage >= 2 ? request.ranks : 1,
                      .optimizer = stage >= 1 ? request.ranks : 1};
  }

  Result<Placement> run() {
    ARTESIAN_TRY_VOID(place_device());
    ARTESIAN_TRY_VOID(place_host());
    release_unused_slots();
    size_nvme();
    return std::move(plan_);
  }

 private:
  std::uint64_t param_bytes(const Unit& unit) const {
    return Sharding::share(unit.image, plan_.sharding.param) * dtype_size(plan_.param_dtype);
  }
  std::uint64_t grad_bytes(const Unit& unit) const {
    return Sharding::share(unit.image, plan_.sharding.grad) * dtype_size(plan_.grad_dtype);
  }
  std::uint64_t slot_bytes(const Unit& unit) const {
    return unit.image * dtype_size(plan_.compute_dtype);
  }
  std::uint64_t optimizer_bytes(const Unit& unit) const {
    return Sharding::share(unit.image, plan_.sharding.optimizer) * 4 * plan_.states;
  }

  /// Lays the model out with at most `persistent_max` persistent elements and assigns the homes
  /// that the config asks for.
  void lay_out(std::uint64_t persistent_max) {
    const ZeroConfig& zero = config_.zero;
    const std::uint64_t param_max = zero.stage < 3 ? 0 : zero.param_persistence_threshold;
    plan_.layout =
        make_layout(*request_.parameters, *request_.stages,
                    {param_max, std::min(persistent_max, zero.model_persistence_threshold)});
    plan_.units.clear();
    for (const Unit& unit : plan_.layout.units) {
      UnitPlacement place;
      place.param = unit.persistent ? Tier::Device : home_of(zero.offload_param.device);
      place.optimizer = home_of(zero.offload_optimizer.device);
      place.updated_on_device = request_.separate_device && place.param == Tier::Device &&
                                place.optimizer == Tier::Device;
      if (place.updated_on_device) place.grad = Tier::Device;
      plan_.units.push_back(place);
    }
    set_aliases();
  }

  void set_aliases() {
    for (UnitPlacement& place : plan_.units) {
      const bool in_reach =
          request_.separate_device ? place.param == Tier::Device : place.param != Tier::Nvme;
      const bool whole = plan_.sharding.param == 1;
      place.aliased = plan_.param_dtype == plan_.compute_dtype && in_reach && whole;
    }
  }

  std::uint64_t largest_gradient() const {
    std::uint64_t largest = 0;
    for (const StageSpec& stage : *request_.stages) {
      std::uint64_t numel = 0;
      for (const auto parameter : stage.parameters) {
        if (stage.lookup != parameter) numel += (*request_.parameters)[parameter].numel();
      }
      largest = std::max(largest, numel * dtype_size(plan_.compute_dtype));
    }
    return largest;
  }

  /// What slots can ever take at once: what may stay or come ahead, and one demand on top of it.
  std::uint64_t slots_max(std::uint64_t stage, std::uint64_t all) const {
    const std::uint64_t size = dtype_size(plan_.compute_dtype);
    if (config_.zero.max_live_parameters >= all / size) return all;
    return std::min(all, page_up(config_.zero.max_live_parameters * size) + stage);
  }

  struct DeviceNeed {
    std::uint64_t fixed = 0;  // homes and persistent slots
    std::uint64_t stage = 0;  // slots of the stage that needs most
    std::uint64_t all = 0;    // slots of all units
    std::string largest_stage;
  };

  DeviceNeed device_need() const {
    DeviceNeed need;
    need.fixed = plan_.expansion_bytes + plan_.grad_scratch_bytes;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      const Unit& unit = plan_.layout.units[index];
      if (plan_.units[index].param == Tier::Device) need.fixed += param_bytes(unit);
      if (plan_.units[index].optimizer == Tier::Device) need.fixed += optimizer_bytes(unit);
      if (plan_.units[index].grad == Tier::Device) need.fixed += grad_bytes(unit);
      if (plan_.units[index].aliased) continue;
      (unit.persistent ? need.fixed : need.all) += slot_bytes(unit);
    }
    for (std::size_t stage = 0; stage < plan_.layout.stages.size(); ++stage) {
      std::uint64_t bytes = 0;
      for (const auto index : plan_.layout.stages[stage]) {
        const Unit& unit = plan_.layout.units[index];
        if (!plan_.units[index].aliased && !unit.persistent) bytes += slot_bytes(unit);
      }
      if (bytes >= need.stage) {
        need.stage = bytes;
        need.largest_stage = (*request_.stages)[stage].name;
      }
    }
    return need;
  }

  Result<void> place_device() {
    plan_.device_gradient_bytes = page_up(largest_gradient()) * (request_.separate_device ? 2 : 1);
    std::uint64_t persistent_max = 0;
    for (const auto& parameter : *request_.parameters) persistent_max += parameter.numel();
    for (bool cut = false;; cut = true) {
      lay_out(persistent_max);
      size_device_buffers();
      const DeviceNeed need = device_need();
      const std::uint64_t minimum = need.fixed + need.stage + plan_.device_gradient_bytes;
      if (minimum <= request_.device_bytes) {
        const std::uint64_t room = request_.device_bytes - plan_.device_gradient_bytes;
        plan_.device_pool_bytes =
            std::min(round_down(room, 4096), need.fixed + slots_max(need.stage, need.all));
        if (cut) {
          plan_.notes.push_back(
              "stage3_param_persistence_threshold: only " + std::to_string(persistent_numel()) +
              " persistent elements fit in artesian.device_memory; the rest are fetched");
        }
        return {};
      }
      if (persistent_numel() == 0) return device_error(need, minimum);
      persistent_max = persistent_numel() / 2;
    }
  }

  void size_device_buffers() {
    if (!request_.separate_device) return;
    const bool expands = plan_.param_dtype != plan_.compute_dtype;
    const bool updates = std::any_of(plan_.units.begin(), plan_.units.end(),
                                     [](const auto& place) { return place.updated_on_device; });
    plan_.expansion_bytes = expands ? device_buffer_bytes : 0;
    plan_.grad_scratch_bytes = updates ? gradient_scratch_bytes : 0;
  }

  /// Parameters that host memory keeps and compute reads there need no slots.
  void release_unused_slots() {
    const DeviceNeed need = device_need();
    plan_.device_pool_bytes =
        std::min(plan_.device_pool_bytes, need.fixed + slots_max(need.stage, need.all));
  }

  std::uint64_t persistent_numel() const {
    std::uint64_t numel = 0;
    for (const Unit& unit : plan_.layout.units) numel += unit.persistent ? unit.numel : 0;
    return numel;
  }

  Error device_error(const DeviceNeed& need, std::uint64_t minimum) const {
    return make_error(
        ErrorCode::Exhausted,
        "artesian.device_memory: got " + format_size(request_.device_bytes) +
            ", allowed at least " + std::to_string(minimum) + " bytes (" + format_size(minimum) +
            "): " + std::to_string(minimum - request_.device_bytes) + " bytes missing for " +
            format_size(need.stage) + " of parameters of \"" + need.largest_stage + "\", " +
            format_size(plan_.device_gradient_bytes) + " of gradients and " +
            format_size(need.fixed) + " kept on the device; raise it" +
            (need.fixed > need.stage ? ", or offload_param / offload_optimizer to cpu or nvme"
                                     : ""));
  }

  bool any_nvme() const {
    return config_.zero.offload_param.device == Offload::Nvme ||
           config_.zero.offload_optimizer.device == Offload::Nvme;
  }

  /// Bytes of one ring item at `sub_group` elements: everything that one sub-group moves.
  std::uint64_t item_bytes(std::uint64_t sub_group) const {
    std::uint64_t per_element = std::uint64_t{plan_.states} * 4 + dtype_size(plan_.grad_dtype);
    per_element += dtype_size(plan_.param_dtype);
    return any_nvme() || request_.separate_device ? page_up(sub_group * per_element) : 0;
  }

  std::uint64_t param_block_bytes(std::uint64_t sub_group) const {
    return sub_group * dtype_size(plan_.param_dtype);
  }
  bool params_on_nvme() const { return config_.zero.offload_param.device == Offload::Nvme; }

  /// The least staging of a separate device: one block on its way down, and one up.
  std::uint64_t staging_min(std::uint64_t sub_group) const {
    if (!request_.separate_device) return 0;
    return param_block_bytes(sub_group) * (params_on_nvme() ? 2 : 1);
  }

  /// Staging takes its least and at most a quarter of `room`, which is what ring and least leave:
  /// more buffers first, as they overlap, then larger ones.
  void size_staging(std::uint64_t room) {
    if (!request_.separate_device) return;
    const OffloadConfig& offload = config_.zero.offload_param;
    const std::uint64_t block = param_block_bytes(plan_.sub_group);
    const std::uint64_t blocks = (staging_min(plan_.sub_group) + room / 4) / block;
    std::uint64_t down = 0;
    if (params_on_nvme()) {
      const auto wanted = std::clamp<std::uint64_t>(offload.buffer_count, 1, 64);
      down = std::clamp<std::uint64_t>(blocks / 2, 1, wanted);
    }
    const auto up = std::clamp<std::uint64_t>(blocks - down, 1, grad_staging_count_max);
    const std::uint64_t wanted_bytes =
        std::min(staging_bytes_max, offload.buffer_size * dtype_size(plan_.param_dtype));
    const std::uint64_t largest = std::max<std::uint64_t>(1, wanted_bytes / block);
    plan_.staging_bytes = block * std::clamp<std::uint64_t>(blocks / (down + up), 1, largest);
    plan_.param_staging_count = static_cast<std::uint32_t>(down);
    plan_.grad_staging_count = static_cast<std::uint32_t>(up);
  }

  std::uint64_t staging_bytes() const {
    return plan_.staging_bytes * (plan_.param_staging_count + plan_.grad_staging_count);
  }

  /// Largest sub-group whose ring takes at most a quarter of `room`, or the smallest that fits at
  /// all.
  bool size_ring(std::uint64_t room) {
    const std::uint64_t wanted = config_.zero.sub_group_size;
    const auto count_max = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(config_.zero.offload_optimizer.buffer_count, 1, 64));
    std::uint64_t sub_group =
        std::max(image_alignment, round_down(std::min(wanted, sub_group_max), image_alignment));
    for (;; sub_group = std::max(image_alignment, round_down(sub_group / 2, image_alignment))) {
      plan_.sub_group = sub_group;
      plan_.ring_item_bytes = item_bytes(sub_group);
      plan_.ring_count = plan_.ring_item_bytes == 0 ? 0 : count_max;
      const auto total = [&] {
        return plan_.ring_count * plan_.ring_item_bytes + staging_min(sub_group);
      };
      if (total() <= room / 4) return true;
      if (sub_group > image_alignment) continue;
      while (total() > room && plan_.ring_count > 1) --plan_.ring_count;
      return total() <= room;
    }
  }

  Result<void> place_host() {
    std::uint64_t fixed = 0;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      const Unit& unit = plan_.layout.units[index];
      if (plan_.units[index].param == Tier::Host) fixed += param_bytes(unit);
      if (plan_.units[index].optimizer == Tier::Host) fixed += optimizer_bytes(unit);
    }
    std::uint64_t gradients = 0;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      if (plan_.units[index].grad != Tier::Device) {
        gradients += grad_bytes(plan_.layout.units[index]);
      }
    }
    const std::uint64_t budget = request_.host_bytes;
    const std::uint64_t must = fixed + (any_nvme() ? 0 : gradients);
    if (must > budget || !size_ring(budget - must)) return host_error(must);
    size_staging(budget - must - ring_bytes() - staging_min(plan_.sub_group));
    std::uint64_t room = budget - must - ring_bytes() - staging_bytes();
    plan_.host_pool_bytes = must + ring_bytes() + staging_bytes();
    if (any_nvme()) room = place_gradients(room, gradients);
    keep_params_in_host(room);
    return {};
  }

  std::uint64_t ring_bytes() const { return plan_.ring_count * plan_.ring_item_bytes; }

  std::uint64_t place_gradients(std::uint64_t room, std::uint64_t wanted) {
    std::uint64_t spilled = 0;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      if (plan_.units[index].grad == Tier::Device) continue;
      const std::uint64_t bytes = grad_bytes(plan_.layout.units[index]);
      if (bytes <= room) {
        room -= bytes;
        plan_.host_pool_bytes += bytes;
      } else {
        plan_.units[index].grad = Tier::Nvme;
        spilled += bytes;
      }
    }
    if (spilled != 0) {
      plan_.notes.push_back("artesian.host_memory: " + format_size(spilled) + " of " +
                            format_size(wanted) + " of gradients spill to NVMe");
    }
    return room;
  }

  /// offload_param.max_in_cpu: 16-bit shards whose home would be NVMe stay in spare host memory.
  void keep_params_in_host(std::uint64_t room) {
    std::uint64_t elements = config_.zero.offload_param.max_in_cpu;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      const Unit& unit = plan_.layout.units[index];
      if (plan_.units[index].param != Tier::Nvme) continue;
      if (unit.numel > elements || param_bytes(unit) > room) continue;
      plan_.units[index].param = Tier::Host;
      elements -= unit.numel;
      room -= param_bytes(unit);
      plan_.host_pool_bytes += param_bytes(unit);
    }
    const std::uint64_t kept = config_.zero.offload_param.max_in_cpu - elements;
    if (kept != 0) {
      plan_.notes.push_back("offload_param.max_in_cpu: " + std::to_string(kept) +
                            " elements of parameters stay in host memory; 0 puts all on NVMe");
    }
    set_aliases();
  }

  Error host_error(std::uint64_t must) const {
    const std::uint64_t ring = item_bytes(image_alignment);  // 0 where none is needed
    const std::uint64_t minimum = must + ring + staging_min(image_alignment);
    const std::uint64_t missing = minimum > request_.host_bytes ? minimum - request_.host_bytes : 0;
    return make_error(ErrorCode::Exhausted,
                      "artesian.host_memory: got " + format_size(request_.host_bytes) +
                          ", allowed at least " + std::to_string(minimum) + " bytes (" +
                          format_size(minimum) + "): " + std::to_string(missing) +
                          " bytes missing for what offload to cpu keeps there" +
                          (any_nvme() ? "" : " and the gradients") +
                          "; raise it, or offload_param / offload_optimizer to nvme");
  }

  void size_nvme() {
    const bool param_path = config_.zero.offload_param.device == Offload::Nvme;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      const Unit& unit = plan_.layout.units[index];
      std::uint64_t& params = param_path ? plan_.nvme_param_bytes : plan_.nvme_optimizer_bytes;
      if (plan_.units[index].param == Tier::Nvme) params += param_bytes(unit);
      if (plan_.units[index].grad == Tier::Nvme) params += grad_bytes(unit);
      if (plan_.units[index].optimizer == Tier::Nvme) {
        plan_.nvme_optimizer_bytes += optimizer_bytes(unit);
      }
    }
  }

  const PlacementRequest& request_;
  const Config& config_;
  Placement plan_;
};

}  // namespace

std::uint64_t Sharding::share(std::uint64_t image, std::uint64_t ranks) noexcept {
  return ranks == 1 ? image : round_up((image + ranks - 1) / ranks, image_alignment);
}

std::uint64_t Placement::sub_group_count(std::uint32_t unit) const noexcept {
  return (layout.units[unit].image + sub_group - 1) / sub_group;
}

std::uint64_t Placement::sub_group_numel(std::uint32_t unit, std::uint64_t index) const noexcept {
  return std::min(sub_group, layout.units[unit].image - index * sub_group);
}

Result<Placement> make_placement(const PlacementRequest& request) {
  return Planner(request).run();
}

}  // namespace artesian::zero3
