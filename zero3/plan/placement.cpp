#include "zero3/plan/placement.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/units.h"
#include "zero3/plan/host_buffers.h"
#include "zero3/plan/residents.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

constexpr std::uint64_t device_buffer_bytes = 1 << 20;  // for pieces to expand
constexpr std::uint64_t gradient_scratch_bytes = 64 << 10;

Tier home_of(Offload device) noexcept {
  return device == Offload::None ? Tier::Device : device == Offload::Cpu ? Tier::Host : Tier::Nvme;
}

/// Without NVMe, at most `host_room` bytes of inputs do not count as activations.
KeptInputs inputs_within(const PlacementRequest& request, std::uint64_t host_room) {
  const Config& config = *request.config;
  if (!config.cpu_checkpointing || request.input_elements.empty()) return {};
  std::vector<std::uint64_t> elements = request.input_elements;  // that backward asks for
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

/// What residents leave a step to do: whether gradients spill, then bytes to and from NVMe.
using Cost = std::pair<bool, std::uint64_t>;

constexpr std::uint64_t state_moves = 2;  // a step reads and writes each byte

class Planner {
 public:
  /// With `to_beat`, a plan that cannot cost less is not made: beaten().
  explicit Planner(const PlacementRequest& request, std::optional<Cost> to_beat = std::nullopt)
      : request_(request), config_(*request.config), to_beat_(to_beat) {
    plan_.param_dtype = config_.param_dtype;
    plan_.grad_dtype = config_.grad_accum_dtype;
    plan_.compute_dtype = request.compute_dtype;
    plan_.inputs = inputs_within(request, request.host_bytes);
    const int stage = config_.zero.stage;
    plan_.sharding = {.param = stage >= 3 ? request.ranks : 1,
                      .grad = stage >= 2 ? request.ranks : 1,
                      .optimizer = stage >= 1 ? request.ranks : 1};
  }

  Result<Placement> run() {
    ARTESIAN_TRY_VOID(place_device());
    ARTESIAN_TRY_VOID(place_host());
    size_device_pool();
    size_nvme();
    return std::move(plan_);
  }

  Cost cost() const noexcept { return {spills_, movable_ - saved_}; }
  /// What run() returned has no residents, since they could not have cost less.
  bool beaten() const noexcept { return beaten_; }
  /// The largest host budget with a smaller ring, if what that leaves for residents might save
  /// more.
  std::optional<std::uint64_t> budget_of_a_smaller_ring() const noexcept { return smaller_ring_; }

 private:
  std::uint64_t slot_bytes(std::size_t unit) const {
    return plan_.layout.units[unit].image * dtype_size(plan_.units[unit].computed);
  }

  /// Lays the model out with at most `persistent_max` persistent elements and assigns the homes
  /// that the config asks for.
  void lay_out(std::uint64_t persistent_max) {
    const ZeroConfig& zero = config_.zero;
    const std::uint64_t param_max = zero.stage < 3 ? 0 : zero.param_persistence_threshold;
    plan_.layout = make_layout(
        *request_.parameters, *request_.stages,
        {param_max, std::min(persistent_max, zero.model_persistence_threshold)}, request_.ranks);
    plan_.units.clear();
    for (const Unit& unit : plan_.layout.units) {
      UnitPlacement place;
      place.param = unit.persistent ? Tier::Device : home_of(zero.offload_param.device);
      // Of a frozen one nobody asks: nothing of it is there.
      place.optimizer = unit.trainable ? home_of(zero.offload_optimizer.device) : Tier::Host;
      place.updated_on_device = request_.separate_device && place.param == Tier::Device &&
                                place.optimizer == Tier::Device;
      if (place.updated_on_device) place.grad = Tier::Device;
      place.master = unit.trainable ? master_of(place, zero.offload_param.device == Offload::None)
                                    : Master::None;
      const bool as_stored = unit.as_stored && !request_.separate_device;
      place.computed = as_stored ? plan_.param_dtype : plan_.compute_dtype;
      plan_.units.push_back(place);
    }
    set_aliases();
  }

  /// Split, but where the parameters are on a separate device and the state in host memory: whole
  /// weights are nearer to the update there. Kernels of such a device take whole ones.
  Master master_of(const UnitPlacement& place, bool param_on_device) const noexcept {
    if (plan_.param_dtype == DType::Float32) return Master::Parameter;
    if (plan_.param_dtype != DType::BFloat16 || !request_.split_master) return Master::Own;
    const bool far = request_.separate_device && place.optimizer == Tier::Host && param_on_device;
    return far || place.updated_on_device ? Master::Own : Master::Split;
  }

  void set_aliases() {
    for (UnitPlacement& place : plan_.units) {
      const bool in_reach =
          request_.separate_device ? place.param == Tier::Device : place.param != Tier::Nvme;
      const bool whole = plan_.sharding.param == 1;
      place.aliased = plan_.param_dtype == place.computed && in_reach && whole;
    }
  }

  std::uint64_t largest_gradient() const {
    std::uint64_t largest = 0;
    for (const StageSpec& stage : *request_.stages) {
      std::uint64_t numel = 0;
      for (const auto parameter : graph_parameters(stage)) {
        const ParameterSpec& spec = (*request_.parameters)[parameter];
        if (!spec.trainable) continue;
        if (request_.separate_device || !spec.tiled) numel += spec.numel();
      }
      largest = std::max(largest, numel * dtype_size(plan_.compute_dtype));
    }
    return largest;
  }

  /// What slots can ever take at once: what may stay or come ahead, and one demand on top of it.
  std::uint64_t slots_max(std::uint64_t stage, std::uint64_t all) const {
    return std::min(all, page_up(slots_of(config_.zero.max_live_parameters, all)) + stage);
  }

  /// Bytes of the slots of so many elements; at most `all`.
  std::uint64_t slots_of(std::uint64_t elements, std::uint64_t all) const {
    const std::uint64_t size = dtype_size(plan_.compute_dtype);
    return elements >= all / size ? all : elements * size;
  }

  struct DeviceNeed {
    std::uint64_t fixed = 0;  // homes and persistent slots
    std::uint64_t stage = 0;  // slots of the stage that needs most
    std::uint64_t next = 0;   // and of the one that needs most beside it
    std::uint64_t all = 0;    // slots of all units
    std::string largest_stage;
  };

  DeviceNeed device_need() const {
    DeviceNeed need;
    need.fixed = plan_.device_homes();
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      const Unit& unit = plan_.layout.units[index];
      if (plan_.units[index].aliased) continue;
      (unit.persistent ? need.fixed : need.all) += slot_bytes(index);
    }
    std::vector<bool> taken(plan_.units.size(), false);
    const auto slots_of_stage = [&](std::size_t stage) {
      std::uint64_t bytes = 0;
      for (const auto index : plan_.layout.stages[stage]) {
        const Unit& unit = plan_.layout.units[index];
        const bool own = !plan_.units[index].aliased && !unit.persistent && !taken[index];
        bytes += own ? slot_bytes(index) : 0;
      }
      return bytes;
    };
    std::size_t largest = 0;
    for (std::size_t stage = 0; stage < plan_.layout.stages.size(); ++stage) {
      const std::uint64_t bytes = slots_of_stage(stage);
      if (bytes < need.stage) continue;
      need.stage = bytes;
      largest = stage;
    }
    need.largest_stage = (*request_.stages)[largest].name;
    for (const auto index : plan_.layout.stages[largest]) taken[index] = true;
    for (std::size_t stage = 0; stage < plan_.layout.stages.size(); ++stage) {
      need.next = std::max(need.next, slots_of_stage(stage));
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
      DeviceNeed need = device_need();
      const std::uint64_t minimum = need.fixed + need.stage + plan_.device_gradient_bytes;
      if (minimum <= request_.device_bytes) {
        device_room_ = round_down(request_.device_bytes - plan_.device_gradient_bytes, 4096);
        if (keep_params_on_device(need)) need = device_need();
        // What state may take is not there for slots, whose moves depend on it.
        const std::uint64_t slots = std::min(device_room_ - need.fixed, need.stage + need.next);
        const std::uint64_t spare =
            may_keep_state_on_device() ? device_room_ - need.fixed - slots : 0;
        plan_.device_pool_bytes =
            std::min(device_room_ - spare, need.fixed + slots_max(need.stage, need.all));
        device_spare_ = spare;
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

  /// Parameters meant for NVMe that device memory has room for beside slots have their homes there,
  /// in order of first use: where a slot saves fetches, a home also saves what the update reads and
  /// writes. Slots are left for the stage that needs most, and for what is fetched ahead of it: one
  /// stage more; where compute reads a home itself it takes none. Not where ranks share them, nor
  /// on a separate device whose kernels would have to expand them. Returns whether there are any.
  bool keep_params_on_device(DeviceNeed need) {
    const ZeroConfig& zero = config_.zero;
    const bool meant_for_nvme = zero.offload_param.device == Offload::Nvme;
    const bool expands = plan_.param_dtype != plan_.compute_dtype;
    if (plan_.sharding.param != 1 || (expands && request_.separate_device)) return false;
    if (!meant_for_nvme || !request_.spare_device) return false;
    std::uint64_t elements = 0;
    if (expands) {
      elements = keep_tables_on_device();
      need = device_need();
    }
    std::uint64_t left = device_room_ - need.fixed;
    if (!expands) left = std::min(left, slots_of(zero.max_live_parameters, need.all));
    if (expands || left < need.all) left -= std::min(left, need.stage + need.next);
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      UnitPlacement& place = plan_.units[index];
      const Unit& unit = plan_.layout.units[index];
      const bool updated_there = request_.separate_device && place.optimizer == Tier::Device;
      const std::uint64_t bytes = plan_.param_bytes(static_cast<std::uint32_t>(index));
      if (place.param == Tier::Device || updated_there || bytes > left) continue;
      left -= bytes;
      elements += unit.numel;
      keep_on_device(place);
    }
    if (elements == 0) return false;
    set_aliases();
    plan_.notes.push_back("artesian.device_memory: " + std::to_string(elements) +
                          " elements of parameters stay on the device; a smaller budget" +
                          (expands ? "" : ", or stage3_max_live_parameters,") +
                          " puts more on NVMe");
    return true;
  }

  void keep_on_device(UnitPlacement& place) const noexcept {
    place.param = Tier::Device;
    if (place.master == Master::None) return;
    place.master = master_of(place, /*param_on_device=*/true);
  }

  /// Those units that compute takes as they are stored, where all else expands: each saves a slot
  /// also. Returns their elements.
  std::uint64_t keep_tables_on_device() {
    std::uint64_t elements = 0;
    for (std::size_t index = 0; index < plan_.units.size(); ++index) {
      UnitPlacement& place = plan_.units[index];
      if (place.param == Tier::Device || place.computed != plan_.param_dtype) continue;
      const UnitPlacement before = place;
      keep_on_device(place);
      set_aliases();
      const DeviceNeed need = device_need();
      if (need.fixed + need.stage + need.next <= device_room_) {
        elements += plan_.layout.units[index].numel;
      } else {
        place = before;
      }
    }
    set_aliases();
    return elements;
  }

  void size_device_buffers() {
    if (!request_.separate_device) return;
    const bool expands = plan_.param_dtype != plan_.compute_dtype;
    const bool updates = std::any_of(plan_.units.begin(), plan_.units.end(),
                                     [](const auto& place) { return place.updated_on_device; });
    plan_.expansion_bytes = expands ? device_buffer_bytes : 0;
    plan_.grad_scratch_bytes = updates ? gradient_scratch_bytes : 0;
  }

  /// Once all homes are known. Parameters that host memory keeps and compute reads there need no
  /// slots; what optimizer state leaves is for slots again.
  void size_device_pool() {
    const DeviceNeed need = device_need();
    plan_.device_pool_bytes = std::min(device_room_, need.fixed + slots_max(need.stage, need.all));
  }

  /// Where the device's memory is RAM, the update works on what lives there as on all else.
  bool may_keep_state_on_device() const {
    return request_.spare_device && !request_.separate_device &&
           config_.zero.offload_optimizer.device == Offload::Nvme;
  }

  void set_optimizer_home(const Candidate& state, Tier home) {
    UnitPlacement& place = plan_.units[state.unit];
    place.optimizer_homes.resize(static_cast<std::size_t>(plan_.sub_group_count(state.unit)),
                                 place.optimizer);
    place.optimizer_homes[static_cast<std::size_t>(state.sub_group)] = home;
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

  bool any_nvme() const { return zero3::any_nvme(config_); }

  /// The least host memory through which inputs go to NVMe.
  std::uint64_t input_buffers_min() const { return any_nvme() && plan_.inputs.some() ? 4096 : 0; }

  /// What these buffers may take of `room`; smooth, as buffers_.staging_share() is.
  std::uint64_t input_buffers_share(std::uint64_t room) const {
    if (input_buffers_min() == 0) return 0;
    return std::min(room / 8, input_buffers_max(plan_.inputs));
  }

  /// Once the homes of inputs are known.
  void size_input_buffers(std::uint64_t room) {
    if (plan_.inputs.bytes_in(Tier::Nvme) != 0) {
      zero3::size_input_buffers(plan_.inputs, input_buffers_min() + input_buffers_share(room));
      plan_.host_pool_bytes += plan_.inputs.buffer_bytes();
    }
    note_inputs();
  }

  void note_inputs() {
    if (!plan_.inputs.some()) return;
    const std::uint64_t host = plan_.inputs.bytes_in(Tier::Host);
    const std::uint64_t nvme = plan_.inputs.bytes_in(Tier::Nvme);
    const std::uint64_t rest = plan_.inputs.bytes_in(Tier::Device);
    plan_.notes.push_back(
        "activation_checkpointing.cpu_checkpointing: of the inputs that backward "
        "needs, " +
        format_size(host) + " are kept in host memory, " + format_size(nvme) + " on NVMe" +
        (rest == 0 ? std::string()
                   : ", " + format_size(rest) +
                         " where they are computed; raise artesian.host_memory, "
                         "or give offload_param an nvme_path"));
  }

  /// Where nothing goes to NVMe: as many inputs as fit.
  void keep_inputs(std::uint64_t spare) {
    plan_.inputs = inputs_within(request_, spare);
    std::vector<Candidate> inputs;
    add_inputs(inputs);
    for (const Candidate& kept : choose_residents(std::move(inputs), {spare, 0})) {
      plan_.host_pool_bytes += kept.bytes;
      plan_.inputs.homes[static_cast<std::size_t>(kept.sub_group)] = Tier::Host;
    }
    note_inputs();
  }

  void add_inputs(std::vector<Candidate>& all) const {
    if (!plan_.inputs.some()) return;
    const KeptInputs& inputs = plan_.inputs;
    for (const auto place : places_by_worth(inputs)) {
      all.push_back(
          {.kind = ResidentKind::Input,
           .sub_group = place,
           .bytes = inputs.place_bytes(static_cast<std::size_t>(place / inputs.at_once)),
           .moves = input_moves(inputs, config_.accumulation_steps, place % inputs.at_once)});
    }
  }

  /// What must be in host memory, apart from the ring.
  std::uint64_t host_homes() const {
    std::uint64_t bytes = 0;
    for (std::uint32_t unit = 0; unit < plan_.units.size(); ++unit) {
      const UnitPlacement& place = plan_.units[unit];
      if (place.param == Tier::Host) bytes += plan_.param_bytes(unit);
      if (place.optimizer == Tier::Host) bytes += plan_.optimizer_bytes(unit);
      if (place.grad != Tier::Device && !any_nvme()) bytes += plan_.grad_bytes(unit);
    }
    return bytes;
  }

  /// Where gradients spill, those of one stage are added to in host memory.
  std::uint64_t grad_buffer() const { return any_nvme() ? plan_.largest_stage_grad_bytes() : 0; }

  Result<void> place_host() {
    const std::uint64_t must = host_homes() + input_buffers_min() + grad_buffer();
    if (must > request_.host_bytes) return host_error(must);
    const std::uint64_t room = request_.host_bytes - must;
    plan_.host_pool_bytes = host_homes();
    if (any_nvme() && !request_.separate_device && keep_everything(room + grad_buffer())) {
      return {};
    }
    if (!buffers_.size_ring(room)) return host_error(must);
    const std::uint64_t rest = room - buffers_.ring_bytes() - buffers_.staging_min(plan_.sub_group);
    buffers_.size_staging(rest);
    plan_.host_pool_bytes += buffers_.ring_bytes() + buffers_.staging_bytes();
    std::uint64_t spare = rest - buffers_.staging_share(rest) - input_buffers_share(rest);
    if (!any_nvme()) {
      keep_inputs(spare);
      return {};
    }
    spare += grad_buffer();
    keep_residents(spare);
    look_for_a_smaller_ring(must, room, spare - plan_.grad_buffer_bytes);
    size_input_buffers(rest);
    return {};
  }

  /// Fills `spare`; where gradients spill then, it is less by the buffer in which they are added.
  void keep_residents(std::uint64_t spare) {
    auto all = candidates_but_state();
    spills_ = gradient_bytes(all) > spare;
    if (spills_) plan_.grad_buffer_bytes = grad_buffer();
    plan_.host_pool_bytes += plan_.grad_buffer_bytes;
    const ResidentLimits limits{spare - plan_.grad_buffer_bytes,
                                config_.zero.offload_param.max_in_cpu};
    beaten_ = to_beat_.has_value() && !(Cost{spills_, bytes_left(all, limits.bytes)} < *to_beat_);
    if (beaten_) return;
    add_state(all);
    keep(choose_residents(std::move(all), limits));
  }

  /// The fewest bytes that a step moves, whichever residents are in `room`: device memory has all
  /// the state that it has room for, and of the residents the last one is cut. Sub-groups of state,
  /// of which a large model has millions, need not be looked at for that.
  std::uint64_t bytes_left(std::vector<Candidate> all, std::uint64_t room) const {
    std::uint64_t state = 0;
    for (std::uint32_t unit = 0; unit < plan_.units.size(); ++unit) {
      if (plan_.units[unit].optimizer == Tier::Nvme) state += plan_.optimizer_bytes(unit);
    }
    all.push_back({.bytes = state - std::min(state, device_spare_), .moves = state_moves});
    std::sort(all.begin(), all.end(),
              [](const Candidate& a, const Candidate& b) { return a.moves > b.moves; });
    std::uint64_t left = 0;
    for (const Candidate& each : all) {
      const std::uint64_t taken = std::min(each.bytes, room);
      room -= taken;
      left += (each.bytes - taken) * each.moves;
    }
    return left;
  }

  /// Everything that could be on NVMe, in the order in which the optimizer comes to it, but for its
  /// own state.
  std::vector<Candidate> candidates_but_state() {
    if (moves_.empty()) {  // they do not depend on the ring
      moves_ = moves_of_a_pass(plan_, *request_.stages, PrefetchLimits::of(config_.zero));
    }
    std::vector<Candidate> all;
    for (std::uint32_t index = 0; index < plan_.units.size(); ++index) {
      const UnitPlacement& place = plan_.units[index];
      const bool trainable = plan_.layout.units[index].trainable;
      // Micro-batches are taken to run at once.
      if (place.grad != Tier::Device && trainable) {
        all.push_back({.kind = ResidentKind::Gradient,
                       .unit = index,
                       .bytes = plan_.grad_bytes(index),
                       .moves = moves_[index].gradient});
      }
      // The optimizer writes it, and may read it, too.
      const std::uint64_t by_update = !trainable ? 0 : plan_.update_reads_param(index) ? 2 : 1;
      if (place.param == Tier::Nvme) {
        all.push_back({.kind = ResidentKind::Parameter,
                       .unit = index,
                       .bytes = plan_.param_bytes(index),
                       .moves = moves_[index].fetches + by_update,
                       .elements = elements_of_a_share(plan_.layout.units[index])});
      }
    }
    add_inputs(all);
    return all;
  }

  /// The most parameters' elements of a unit that any rank holds.
  std::uint64_t elements_of_a_share(const Unit& unit) const noexcept {
    return std::min(unit.numel, Sharding::share(unit.image, plan_.sharding.param));
  }

  /// In order, and counts what all of them move; what spare device memory has room for gets its
  /// home there, and is none.
  void add_state(std::vector<Candidate>& all) {
    std::vector<Candidate> state;
    std::uint64_t count = 0;
    for (std::uint32_t index = 0; index < plan_.units.size(); ++index) {
      count += plan_.sub_group_count(index);
    }
    state.reserve(static_cast<std::size_t>(count));
    all.reserve(all.size() + static_cast<std::size_t>(count));
    for (std::uint32_t index = 0; index < plan_.units.size(); ++index) {
      plan_.units[index].optimizer_homes.clear();
      if (plan_.units[index].optimizer != Tier::Nvme) continue;
      for (std::uint64_t group = 0; group < plan_.sub_group_count(index); ++group) {
        state.push_back({.kind = ResidentKind::OptimizerState,
                         .unit = index,
                         .sub_group = group,
                         .bytes = plan_.record_bytes(index, group),
                         .moves = state_moves});
      }
    }
    std::uint64_t spare = device_spare_;
    for (const auto place : order_of_state(state)) {
      const Candidate& each = state[static_cast<std::size_t>(place)];
      if (each.bytes > spare) {
        all.push_back(each);
        continue;
      }
      spare -= each.bytes;
      set_optimizer_home(each, Tier::Device);
    }
    movable_ = 0;
    for (const Candidate& each : all) movable_ += each.bytes * each.moves;
  }

  /// Whether some of the update may go under backward, as far as memory leaves state on NVMe.
  bool may_update_under_backward() const {
    return !spills_ && zero3::may_update_under_backward(config_, plan_, *request_.stages);
  }

  /// Spread over the update; where backward may take a part of it, by whole units, as it does, and
  /// first what is left to the beginning of forward, with little to hide it.
  std::vector<std::uint64_t> order_of_state(const std::vector<Candidate>& state) const {
    if (!may_update_under_backward()) return spread_order(state.size());
    std::vector<std::vector<std::uint64_t>> of_unit(plan_.units.size());
    for (std::uint64_t place = 0; place < state.size(); ++place) {
      of_unit[state[static_cast<std::size_t>(place)].unit].push_back(place);
    }
    std::vector<std::uint64_t> units = spread_order(of_unit.size());
    const std::vector<bool> early = final_early(plan_.layout, *request_.stages);
    std::stable_partition(units.begin(), units.end(),
                          [&](std::uint64_t unit) { return !early[unit]; });
    std::vector<std::uint64_t> order;
    for (const std::uint64_t unit : units) {
      order.insert(order.end(), of_unit[unit].begin(), of_unit[unit].end());
    }
    return order;
  }

  /// Without a ring, where nothing remains on NVMe. Returns whether that is so.
  bool keep_everything(std::uint64_t room) {
    plan_.sub_group = buffers_.largest_sub_group();
    auto all = candidates_but_state();
    if (bytes_left(all, room) != 0) return false;
    add_state(all);
    std::uint64_t elements = config_.zero.offload_param.max_in_cpu;
    for (const Candidate& each : all) {
      if (each.bytes > room || each.elements > elements) return false;
      room -= each.bytes;
      elements -= each.elements;
    }
    keep(all);
    note_inputs();
    return true;
  }

  /// Gives the residents homes in host memory, and what else the candidates are, on NVMe.
  void keep(const std::vector<Candidate>& residents) {
    for (UnitPlacement& place : plan_.units) {
      if (place.grad != Tier::Device && place.master != Master::None) place.grad = Tier::Nvme;
    }
    std::uint64_t state = 0;
    std::uint64_t elements = 0;
    for (const Candidate& resident : residents) {
      plan_.host_pool_bytes += resident.bytes;
      saved_ += resident.bytes * resident.moves;
      elements += resident.elements;
      switch (resident.kind) {
        case ResidentKind::Gradient: plan_.units[resident.unit].grad = Tier::Host; break;
        case ResidentKind::Parameter: plan_.units[resident.unit].param = Tier::Host; break;
        case ResidentKind::Input:
          plan_.inputs.homes[static_cast<std::size_t>(resident.sub_group)] = Tier::Host;
          break;
        case ResidentKind::OptimizerState:
          set_optimizer_home(resident, Tier::Host);
          state += resident.bytes;
          break;
      }
    }
    note_residents(state, elements);
    set_aliases();
  }

  void note_residents(std::uint64_t state, std::uint64_t elements) {
    std::uint64_t spilled = 0;
    std::uint64_t gradients = 0;
    std::uint64_t all_state = 0;
    std::uint64_t on_device = 0;
    for (std::uint32_t unit = 0; unit < plan_.units.size(); ++unit) {
      const std::uint64_t bytes = plan_.grad_bytes(unit);
      if (plan_.units[unit].grad != Tier::Device) gradients += bytes;
      if (plan_.units[unit].grad == Tier::Nvme) spilled += bytes;
      all_state += plan_.optimizer_bytes(unit);
      const bool spare = plan_.units[unit].optimizer == Tier::Nvme;  // holds what is meant for it
      on_device += spare ? plan_.optimizer_bytes_in(Tier::Device, unit) : 0;
    }
    if (spilled != 0) {
      plan_.notes.push_back("artesian.host_memory: " + format_size(spilled) + " of " +
                            format_size(gradients) + " of gradients spill to NVMe");
    }
    if (elements != 0) {
      plan_.notes.push_back("offload_param.max_in_cpu: " + std::to_string(elements) +
                            " elements of parameters stay in host memory; 0 puts all on NVMe");
    }
    const auto note_state = [&](const char* key, std::uint64_t bytes, const char* where) {
      if (bytes == 0) return;
      const std::string share = bytes == all_state
                                    ? "all " + format_size(bytes)
                                    : format_size(bytes) + " of " + format_size(all_state);
      plan_.notes.push_back(key + (": " + share) + " of optimizer state stay " + where +
                            "; a smaller budget puts more on NVMe");
    };
    note_state("artesian.device_memory", on_device, "on the device");
    note_state("artesian.host_memory", state, "in host memory");
  }

  /// `spare` is what the ring leaves of `room` for residents. A ring one size smaller leaves less
  /// than the least room for this one: that may be more than `spare`, or fit better.
  void look_for_a_smaller_ring(std::uint64_t must, std::uint64_t room, std::uint64_t spare) {
    const std::uint64_t total = buffers_.ring_bytes() + buffers_.staging_min(plan_.sub_group);
    const std::uint64_t record = plan_.sub_group * plan_.state_size_max();
    std::uint64_t least = total <= room / 4 ? 4 * total : total;
    std::uint64_t below = least;                         // bounds what it would leave
    if (plan_.ring_count > buffers_.ring_count_min()) {  // lengthened: just below, by one item less
      least = 8 * buffers_.ring_bytes();
      below = least - buffers_.ring_bytes() + plan_.ring_item_bytes;
    }
    below += grad_buffer();  // if no gradient spills there
    if (spare < below + record) smaller_ring_ = must + least - 1;
  }

  Error host_error(std::uint64_t must) const {
    const std::uint64_t ring = buffers_.item_bytes(image_alignment);  // 0 where none is needed
    const std::uint64_t minimum = must + ring + buffers_.staging_min(image_alignment);
    const std::uint64_t missing = minimum > request_.host_bytes ? minimum - request_.host_bytes : 0;
    return make_error(ErrorCode::Exhausted,
                      "artesian.host_memory: got " + format_size(request_.host_bytes) +
                          ", allowed at least " + std::to_string(minimum) + " bytes (" +
                          format_size(minimum) + "): " + std::to_string(missing) +
                          " bytes missing for what offload to cpu keeps there" +
                          (any_nvme() ? " and one stage's gradients" : " and the gradients") +
                          "; raise it, or offload_param / offload_optimizer to nvme");
  }

  void size_nvme() {
    const bool param_path = config_.zero.offload_param.device == Offload::Nvme;
    (param_path ? plan_.nvme_param_bytes : plan_.nvme_optimizer_bytes) +=
        plan_.inputs.bytes_in(Tier::Nvme);
    for (std::uint32_t index = 0; index < plan_.units.size(); ++index) {
      std::uint64_t& params = param_path ? plan_.nvme_param_bytes : plan_.nvme_optimizer_bytes;
      if (plan_.units[index].param == Tier::Nvme) params += plan_.param_bytes(index);
      if (plan_.units[index].grad == Tier::Nvme) params += plan_.grad_bytes(index);
      plan_.nvme_optimizer_bytes += plan_.optimizer_bytes_in(Tier::Nvme, index);
    }
  }

  const PlacementRequest& request_;
  const Config& config_;
  Placement plan_;
  HostBuffers buffers_{plan_, config_, request_.separate_device};
  std::vector<UnitMoves> moves_;
  std::uint64_t device_room_ = 0;   // for homes and slots
  std::uint64_t device_spare_ = 0;  // of it for optimizer state
  std::uint64_t movable_ = 0;       // bytes of a step, with everything that could be on NVMe there
  std::uint64_t saved_ = 0;
  const std::optional<Cost> to_beat_;
  bool beaten_ = false;
  bool spills_ = false;  // some gradient
  std::optional<std::uint64_t> smaller_ring_;
};

}  // namespace

KeptInputs most_inputs(const PlacementRequest& request) {
  return inputs_within(request, request.host_bytes);
}

namespace {

struct Planned {
  Placement placement;
  Cost cost;
};

/// A ring grows by leaps, at the cost of residents: Note [More memory, never more bytes]. Where
/// they would save less than below the leap, what was right there stays.
Result<Planned> place_with_best_ring(const PlacementRequest& request) {
  Planner planner(request);
  ARTESIAN_TRY(placement, planner.run());
  Planned best{std::move(placement), planner.cost()};
  PlacementRequest less = request;
  for (auto budget = planner.budget_of_a_smaller_ring(); budget.has_value();) {
    less.host_bytes = *budget;
    Planner below(less, best.cost);
    auto plan = below.run();
    if (!plan.has_value()) break;  // a ring cannot be smaller
    if (!below.beaten() && below.cost() < best.cost) best = {std::move(plan).value(), below.cost()};
    budget = below.budget_of_a_smaller_ring();
  }
  return best;
}

/// Whether spare device memory has homes in place of slots, in which parameters could stay
/// gathered.
bool takes_slots(const PlacementRequest& request, const Placement& plan) noexcept {
  if (request.config->zero.offload_param.device != Offload::Nvme) return false;
  bool state = false;
  bool some_need_slots = false;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitPlacement& place = plan.units[unit];
    if (place.aliased || plan.layout.units[unit].persistent) continue;
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
Result<Planned> place_with_best_homes(const PlacementRequest& request) {
  auto best = place_with_best_ring(request);
  if (!best.has_value() || !takes_slots(request, best->placement)) return best;
  PlacementRequest without = request;
  without.spare_device = false;
  auto other = place_with_best_ring(without);
  return other.has_value() && !(best->cost < other->cost) ? std::move(other) : std::move(best);
}

/// Whether the update fetches upper halves from NVMe although memory has most of the optimizer
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

}  // namespace

/// Split master weights take less memory and fewer bytes; but where host memory has the state and
/// NVMe the parameters, the update would fetch for nothing what whole ones hold at hand.
Result<Placement> make_placement(const PlacementRequest& request) {
  auto best = place_with_best_homes(request);
  if (best.has_value() && fetches_halves_alone(best->placement)) {
    PlacementRequest whole = request;
    whole.split_master = false;
    auto other = place_with_best_homes(whole);
    if (other.has_value() && other->cost < best->cost) return std::move(other->placement);
  }
  if (!best.has_value()) return std::move(best).error();
  return std::move(best->placement);
}

}  // namespace artesian::zero3
