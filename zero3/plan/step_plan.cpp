#include "zero3/plan/step_plan.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "kernels/gradient.h"
#include "zero3/flow/update_order.h"
#include "zero3/plan/dry_slots.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

using tiering::Route;
using tiering::SlotState;
using tiering::Tier;
using Kind = StepEvent::Kind;

Moved& Moved::operator+=(const Moved& other) noexcept {
  nvme_read += other.nvme_read;
  nvme_write += other.nvme_write;
  to_device += other.to_device;
  to_host += other.to_host;
  bus += other.bus;
  return *this;
}

MovedByKind& MovedByKind::operator+=(const MovedByKind& other) noexcept {
  param += other.param;
  grad += other.grad;
  optimizer += other.optimizer;
  input += other.input;
  return *this;
}

Moved MovedByKind::total() const noexcept {
  Moved sum = param;
  sum += grad;
  sum += optimizer;
  sum += input;
  return sum;
}

MovedByKind update_moves(const Placement& plan, std::uint32_t unit, bool live) {
  if (!plan.layout.units[unit].trainable) return {};
  const UnitPlacement& place = plan.units[unit];
  const std::uint64_t updated =  // parameters that this rank makes anew
      plan.layout.units[unit].share * dtype_size(plan.param_dtype);
  MovedByKind moved;
  const std::uint64_t whole = plan.layout.units[unit].image * dtype_size(plan.param_dtype);
  const bool held = live || !plan.params_cut;  // what the other ranks made anew comes back
  if (held) moved.param.bus = whole - std::min(updated, whole);
  if (place.updated_on_device()) return moved;
  const std::uint64_t state = plan.optimizer_bytes(unit);
  moved.optimizer.nvme_read = moved.optimizer.nvme_write =
      plan.optimizer_bytes_in(Tier::Nvme, unit);
  if (place.grad == Tier::Nvme) moved.grad.nvme_read = plan.grad_bytes(unit);
  if (place.param == Tier::Nvme) {
    moved.param.nvme_write = updated;
    if (plan.update_reads_param(unit)) moved.param.nvme_read = updated;
  }
  if (plan.host_route(place.optimizer) == Route::Queues)
    moved.optimizer.to_host = moved.optimizer.to_device = state;
  if (plan.host_route(place.param) == Route::Queues) {
    moved.param.to_device = updated;
    if (plan.update_reads_param(unit)) moved.param.to_host = updated;
  }
  if (live && place.gather == Route::Queues) moved.param.to_device += updated;
  return moved;
}

namespace {

/// Runs steps over dry slots and keeps the events of the last one.
class DryRun {
 public:
  explicit DryRun(const StepPlanRequest& request)
      : request_(request),
        placement_(*request.placement),
        layout_(placement_.layout),
        accesses_(step_accesses(layout_, *request.stages, request.micro_batches, request.group)),
        slots_(dry_units(placement_), placement_.device_pool_bytes, placement_.device_homes(),
               [this](const DryMove& move) { see(move); }),
        prefetcher_(layout_, slots_, request.limits),
        order_(placement_),
        updatable_(units_updated_after_stage()) {}

  Result<StepPlan> run() {
    ARTESIAN_CHECK(request_.micro_batches > 0, request_.micro_batches);
    filled_ = std::vector<bool>(layout_.units.size(), false);
    ARTESIAN_TRY_VOID(prefetcher_.gather_persistent());
    for (int step = 0; step < 3; ++step) {  // recorded, first with look-ahead, steady
      plan_.events.clear();
      prefetcher_.reset_statistics();
      ARTESIAN_TRY_VOID(one_step());
    }
    check_events();
    for (const StepEvent& event : plan_.events) plan_.moved += event.moved;
    plan_.fetched = prefetcher_.statistics();
    return std::move(plan_);
  }

 private:
  /// A steady step sums the squares of each unit's gradient once, and updates each unit once.
  void check_events() const {
    std::vector<std::uint32_t> norms(layout_.units.size(), 0);
    std::vector<std::uint32_t> updates = norms;
    for (const StepEvent& event : plan_.events) {
      if (event.kind == Kind::Norm) ++norms[event.unit];
      if (event.kind == Kind::Update) ++updates[event.unit];
    }
    for (std::uint32_t unit = 0; unit < layout_.units.size(); ++unit) {
      const std::uint32_t once = layout_.units[unit].trainable ? 1 : 0;
      ARTESIAN_CHECK(norms[unit] == once && updates[unit] == once, unit, norms[unit],
                     updates[unit]);
    }
  }

  /// By stage: what is updated under backward once that is done with it.
  std::vector<std::vector<std::uint32_t>> units_updated_after_stage() const {
    const std::vector<bool>& chosen = request_.under_backward;
    ARTESIAN_CHECK(chosen.empty() || chosen.size() == layout_.units.size(), chosen.size());
    auto by_stage = final_after_stage(placement_, *request_.stages);
    for (auto& units : by_stage) {
      std::erase_if(units, [&](std::uint32_t unit) { return chosen.empty() || !chosen[unit]; });
    }
    return by_stage;
  }

  std::uint64_t grad_bytes(std::uint64_t elements) const {
    return elements * dtype_size(placement_.grad_dtype);
  }

  StepEvent& add(Kind kind, std::uint32_t unit) {
    StepEvent& event = plan_.events.emplace_back();
    event.kind = kind;
    event.unit = unit;
    return event;
  }

  StepEvent& add_of_stage(Kind kind, const StageAccess& access) {
    StepEvent& event = add(kind, 0);
    event.stage = access.stage;
    event.direction = access.direction;
    event.micro_batches = access.micro_batches;
    return event;
  }

  void see(const DryMove& move) {
    const UnitPlacement& place = placement_.units[move.unit];
    const bool casts = placement_.param_dtype != place.computed;
    if (move.to == SlotState::Fetching) filled_[move.unit] = order_.is_pending(move.unit);
    if (filled_[move.unit]) return;  // by the update: nothing is fetched
    if (move.to == SlotState::Fetching) {
      StepEvent& event = add(Kind::Fetch, move.unit);
      event.ahead = move.priority != aio::Priority::Demand;
      if (place.param == Tier::Nvme)
        event.moved.param.nvme_read = placement_.param_bytes(move.unit);
      const bool copies = place.gather == Route::Queues && place.param != Tier::Device;
      if (copies) event.moved.param.to_device = placement_.param_bytes(move.unit);
      const std::uint64_t whole =
          layout_.units[move.unit].image * dtype_size(placement_.param_dtype);
      event.moved.param.bus = whole - std::min(whole, placement_.param_bytes(move.unit));
    } else if (move.to == SlotState::Live) {
      StepEvent& event = add(Kind::Await, move.unit);
      if (place.gather == Route::Memory || (place.gather == Route::Disk && casts)) {
        event.moved.param.to_device = placement_.param_bytes(move.unit);
      }
    }
  }

  Result<void> one_step() {
    started_ = std::vector<bool>(layout_.units.size(), false);
    prefetcher_.begin_step();
    const std::size_t stages = request_.stages->size() - layout_.first_trainable_stage;
    const std::size_t last_backward = accesses_.size() - stages;  // its first access
    for (const StageAccess& access : accesses_) {
      if (&access == &accesses_[last_backward]) begin_updates_under_backward();
      ARTESIAN_TRY_VOID(prefetcher_.enter(access.units));
      for (const auto unit : access.units) update_up_to(unit);
      const bool forward = access.direction == Direction::Forward;
      if (!forward) add_of_stage(Kind::Input, access).moved.input = input_moves(access);
      StepEvent& event = add_of_stage(Kind::Compute, access);
      if (forward) event.updated_ahead = units_ahead();
      if (forward) add_of_stage(Kind::Input, access).moved.input = input_moves(access);
      // From a separate device gradients come while the next stage is computed.
      const bool late = placement_.separate_device && &access > &accesses_[last_backward];
      if (late) update_under_backward(access.stage + 1);
      if (!forward) add_gradients(access);
      const bool last = &access >= &accesses_[last_backward];
      ARTESIAN_TRY_VOID(prefetcher_.leave(access.units));
      if (last && !placement_.separate_device) update_under_backward(access.stage);
    }
    if (placement_.separate_device) update_under_backward(layout_.first_trainable_stage);
    end_gradients();
    ARTESIAN_TRY_VOID(prefetcher_.end_step());
    for (const std::uint32_t unit : order_.trained()) add_norm(unit);
    for (const std::uint32_t unit : order_.trained()) {
      if (placement_.units[unit].updated_on_device()) add_update(unit);
    }
    complete_update();  // where all is frozen, and there is no backward
    order_.begin_deferred();
    return prefetcher_.look_ahead_to_next_step();
  }

  /// The rest of the update that the step before has left: of units that no forward has come to.
  void complete_update() {
    if (order_.phase() != UpdatePhase::Deferred) return;
    while (order_.some_left()) update_next();
    order_.finish();
  }

  void begin_updates_under_backward() {
    complete_update();
    order_.begin_ahead(final_order(updatable_), request_.speculative);
  }

  void update_under_backward(std::size_t stage) {
    for (const std::uint32_t unit : updatable_[stage]) {
      ARTESIAN_CHECK(started_[unit], unit);
      order_.gradient_is_final(unit);
    }
    while (order_.under_backward() && order_.updated().size() < order_.finals().size()) {
      const std::uint32_t unit = order_.next();
      StepEvent& update = update_next();
      update.under_backward = true;
      if (request_.speculative) update.moved.optimizer += saved_moves(placement_, unit);
    }
  }

  /// Behind the last backward.
  void end_gradients() {
    add_rows();
    for (const std::uint32_t unit : order_.trained()) {
      if (started_[unit]) continue;
      StepEvent& event = add(Kind::Zero, unit);
      if (spilled(unit)) move_spilled(unit, true, 0, event.moved.grad);
    }
  }

  /// Each input goes to its place after the stage's forward and comes back for its backward.
  Moved input_moves(const StageAccess& access) const {
    Moved moved;
    const KeptInputs& inputs = placement_.inputs;
    if (!inputs.some()) return moved;
    const bool forward = access.direction == Direction::Forward;
    for (std::uint64_t index = 0; index < access.micro_batches; ++index) {
      const Tier home = inputs.home(access.stage, index);
      if (home == Tier::Device) continue;  // it stays
      (forward ? moved.to_host : moved.to_device) += inputs.bytes[access.stage];
      if (home != Tier::Nvme) continue;
      (forward ? moved.nvme_write : moved.nvme_read) += inputs.place_bytes(access.stage);
    }
    return moved;
  }

  /// Updates what the step before left, as far as that.
  void update_up_to(std::uint32_t unit) {
    while (order_.demands(unit)) update_next();
  }

  StepEvent& update_next() {
    StepEvent& event = add_update(order_.next());
    order_.update_next();
    return event;
  }

  /// The first unit left whose slot is not there to be filled, or does not stay.
  std::uint32_t units_ahead() const {
    if (placement_.separate_device) return 0;
    const auto keeps_refreshed = [&](std::uint32_t unit) {
      if (placement_.units[unit].aliased()) return true;
      return slots_.state(unit) != SlotState::Absent && prefetcher_.stays(unit);
    };
    for (const std::uint32_t unit : order_.left()) {
      if (!keeps_refreshed(unit)) return unit;
    }
    return static_cast<std::uint32_t>(layout_.units.size());
  }

  StepEvent& add_update(std::uint32_t unit) {
    ARTESIAN_CHECK(layout_.units[unit].trainable, unit);
    const bool live = slots_.state(unit) != SlotState::Absent;
    StepEvent& event = add(Kind::Update, unit);
    event.moved = update_moves(placement_, unit, live);
    return event;
  }

  void add_norm(std::uint32_t unit) {
    StepEvent& event = add(Kind::Norm, unit);
    if (placement_.units[unit].grad != Tier::Device) return;
    event.moved.grad.to_host += layout_.units[unit].share / kernels::norm_leaf * 8;
  }

  bool spilled(std::uint32_t unit) const { return placement_.units[unit].grad == Tier::Nvme; }

  /// Elements of the sub-groups that hold some of these parameters.
  std::uint64_t touched(std::uint32_t unit, const std::vector<std::uint32_t>& parameters) const {
    std::uint64_t elements = 0;
    std::uint64_t counted = 0;                 // sub-groups below are counted
    for (const auto parameter : parameters) {  // ascending, as they lie in the image
      const ParameterPlace& place = layout_.places[parameter];
      const std::uint64_t size = placement_.sub_group;
      const std::uint64_t begin = std::max(place.first / size, counted);
      const std::uint64_t end = (place.first + place.numel + size - 1) / size;
      if (begin >= end) continue;
      elements += std::min(end * size, layout_.units[unit].image) - begin * size;
      counted = end;
    }
    return elements;
  }

  /// As UnitGraphs and Gradients do it: by unit, what a first addition leaves becomes zero.
  void add_gradients(const StageAccess& access) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> by_unit;
    for (const auto parameter : graph_parameters((*request_.stages)[access.stage])) {
      const std::uint32_t unit = layout_.places[parameter].unit;
      if (layout_.units[unit].trainable) by_unit[unit].push_back(parameter);
    }
    for (auto& [unit, parameters] : by_unit) {
      std::sort(parameters.begin(), parameters.end(), [&](std::uint32_t a, std::uint32_t b) {
        return layout_.places[a].first < layout_.places[b].first;
      });
      StepEvent& event = add(Kind::Gradients, unit);
      event.micro_batches = access.micro_batches;
      for (const auto parameter : parameters) event.numel += layout_.places[parameter].numel;
      event.sets = !started_[unit];
      event.moved.grad = gradient_moves(event, parameters);
      started_[unit] = true;
    }
  }

  Moved gradient_moves(const StepEvent& event, const std::vector<std::uint32_t>& parameters) {
    const std::uint64_t ranks = placement_.ranks;
    const std::uint64_t rounded = event.numel * dtype_size(placement_.param_dtype);
    const std::uint64_t times = placement_.additions(event.unit, event.micro_batches, event.sets);
    Moved moved;
    switch (placement_.units[event.unit].gradient) {
      case Route::OnDevice: break;
      case Route::Queues: moved.to_host = rounded / ranks * times; break;
      default: moved.to_host = grad_bytes(event.numel) / ranks * times;
    }
    moved.bus = rounded / ranks * (ranks - 1) * event.micro_batches;
    if (spilled(event.unit)) {
      move_spilled(event.unit, event.sets, touched(event.unit, parameters), moved);
    }
    return moved;
  }

  /// Once for all micro-batches that run at once: so many elements, of a first addition all.
  void move_spilled(std::uint32_t unit, bool sets, std::uint64_t elements, Moved& moved) const {
    const std::uint64_t bytes = grad_bytes(elements) / placement_.ranks;
    moved.nvme_read = sets ? 0 : bytes;
    moved.nvme_write = sets ? placement_.grad_bytes(unit) : bytes;
  }

  void add_rows() {
    for (const StageSpec& stage : *request_.stages) {
      if (stage.lookup.has_value()) add_rows_of(*stage.lookup);
    }
  }

  void add_rows_of(std::uint32_t parameter) {
    const ParameterPlace& place = layout_.places[parameter];
    if (!layout_.units[place.unit].trainable) return;
    StepEvent& event = add(Kind::Rows, place.unit);
    event.numel = request_.tokens * request_.lookup_width * request_.micro_batches;
    // To its share of the table a rank gets what falls there of each other rank's rows, in fp32 as
    // they are summed; or, where that is less, of their sums over the whole table, once a step.
    const std::uint64_t ranks = placement_.ranks;
    const std::uint64_t dense = place.numel * dtype_size(placement_.param_dtype);
    const std::uint64_t sparse = std::max(event.numel, request_.rows * request_.lookup_width) * 4;
    event.moved.grad.bus = std::min(sparse, dense) / ranks * (ranks - 1);
    if (placement_.separate_device) {
      event.moved.grad.to_host = event.numel * 4;
      if (placement_.units[place.unit].gradient == Route::OnDevice) {
        event.moved.grad.to_device = event.numel * 4;
      }
    }
    if (spilled(place.unit)) {
      move_spilled(place.unit, !started_[place.unit], touched(place.unit, {parameter}),
                   event.moved.grad);
    }
    started_[place.unit] = true;
  }

  const StepPlanRequest& request_;
  const Placement& placement_;
  const Layout& layout_;
  const std::vector<StageAccess> accesses_;
  std::vector<bool> started_;  // by unit, as these: has a gradient this step
  std::vector<bool> filled_;   // by unit: its slot is filled by the update
  StepPlan plan_;
  DrySlots slots_;
  Prefetcher prefetcher_;
  UpdateOrder order_;
  const std::vector<std::vector<std::uint32_t>> updatable_;  // by stage: what is updated there
};

}  // namespace

Result<StepPlan> plan_step(const StepPlanRequest& request) {
  return DryRun(request).run();
}

}  // namespace artesian::zero3
