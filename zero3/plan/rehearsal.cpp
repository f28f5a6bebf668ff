#include "zero3/plan/rehearsal.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "kernels/gradient.h"
#include "zero3/flow/gradient_additions.h"
#include "zero3/flow/step_flow.h"
#include "zero3/flow/under_backward_flow.h"
#include "zero3/plan/dry_slots.h"
#include "zero3/plan/dry_spill.h"
#include "zero3/plan/dry_update.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

using tiering::Route;
using tiering::SlotState;
using tiering::Tier;
using Kind = StepEvent::Kind;

namespace {

constexpr int operators = 16;  // operators of a stage, between which the update may run

/// Gradients without memory: all are finite, and none is too large.
struct DryGradients {
  static std::optional<double> sum_final(std::uint32_t) { return 0.0; }
};

/// Runs steps, and records the events of the last one.
class Rehearsal : public StepFlow<Rehearsal> {
 public:
  Rehearsal(const StepPlanRequest& request, const StepTiming* timing)
      : request_(request),
        timed_(timing != nullptr),
        placement_(*request.placement),
        layout_(placement_.layout),
        accesses_(step_accesses(layout_, *request.stages, request.micro_batches, request.group)),
        additions_(placement_),
        clock_(placement_, timing),
        spill_(placement_, clock_),
        slots_(dry_units(placement_), placement_.device_pool_bytes, placement_.device_homes(),
               [this](const DryMove& move) { see(move); }),
        prefetcher_(layout_, slots_, request.limits),
        update_(placement_, clock_,
                {.live = [this](auto unit) { return slots_.state(unit) != SlotState::Absent; },
                 .stays = [this](auto unit) { return prefetcher_.stays(unit); },
                 .done = [this](StepEvent& event) { count(event); }}),
        under_backward_(layout_.units.size(), request.speculative, /*hooked=*/false, gradients_,
                        update_) {
    if (request.under_backward.empty()) return;
    ARTESIAN_CHECK(request.under_backward.size() == layout_.units.size());
    under_backward_.choose(request.under_backward, final_after_stage(placement_, *request.stages));
  }

  /// The first steps record, then prefetch for the first time, then adapt to that; a timed step
  /// must follow another timed step.
  Result<TimedStep> run() {
    ARTESIAN_CHECK(request_.micro_batches > 0, request_.micro_batches);
    filled_ = std::vector<bool>(layout_.units.size(), false);
    ARTESIAN_TRY_VOID(prefetcher_.gather_persistent());
    const std::uint64_t together = std::max<std::uint64_t>(request_.clipped_every, 1);
    const std::uint64_t settle = timed_ ? 4 : 2;
    const std::uint64_t before = (settle + together - 1) / together * together;
    for (std::uint64_t step = 0; step < before + together; ++step) {
      if (step == before) {
        plan_.moved = {};
        clock_.begin_step();
      }
      plan_.events.clear();
      prefetcher_.reset_statistics();
      const bool clipped = request_.clipped_every != 0 && step % request_.clipped_every == 0;
      ARTESIAN_TRY_VOID(one_step(/*starts_clock=*/step == 0, clipped));
    }
    plan_.fetched = prefetcher_.statistics();
    plan_.moved /= together;
    return TimedStep{.moved = plan_.moved, .time = clock_.take_time(together)};
  }
  StepPlan take_plan() { return std::move(plan_); }

 private:
  std::uint64_t grad_bytes(std::uint64_t elements) const {
    return elements * dtype_size(placement_.grad_dtype);
  }

  /// Records an event before its time is added.
  void count(StepEvent& event) {
    if (request_.see) request_.see(event);
    plan_.moved += event.moved;
    plan_.events.push_back(event);
  }

  static StepEvent of_stage(Kind kind, const StageAccess& access) {
    return {.kind = kind,
            .stage = access.stage,
            .direction = access.direction,
            .micro_batches = access.micro_batches};
  }

  void see(const DryMove& move) {
    const UnitPlacement& place = placement_.units[move.unit];
    const bool casts = placement_.param_dtype != place.computed;
    if (move.to == SlotState::Fetching) filled_[move.unit] = update_.order().is_pending(move.unit);
    if (filled_[move.unit]) return;  // the update has filled the slot, so nothing is fetched
    if (move.to == SlotState::Fetching) {
      StepEvent event{.kind = Kind::Fetch, .unit = move.unit};
      event.ahead = move.priority != aio::Priority::Demand;
      if (place.param == Tier::Nvme)
        event.moved.param.nvme_read = placement_.param_bytes(move.unit);
      const bool copies = place.gather == Route::Queues && place.param != Tier::Device;
      if (copies) event.moved.param.to_device = placement_.param_bytes(move.unit);
      const std::uint64_t whole =
          layout_.units[move.unit].image * dtype_size(placement_.param_dtype);
      event.moved.param.bus = whole - std::min(whole, placement_.param_bytes(move.unit));
      count(event);
      clock_.fetch(event);
    } else if (move.to == SlotState::Live) {
      StepEvent event{.kind = Kind::Await, .unit = move.unit};
      if (place.gather == Route::Memory || (place.gather == Route::Disk && casts)) {
        event.moved.param.to_device = placement_.param_bytes(move.unit);
      }
      count(event);
      clock_.await(event);
    }
  }

  Result<void> one_step(bool starts_clock, bool clipped) {
    additions_.begin_step();
    prefetcher_.begin_step();
    const std::size_t stages = request_.stages->size() - layout_.first_trainable_stage;
    const std::size_t last_backward = accesses_.size() - stages;  // its first access
    for (const StageAccess& access : accesses_) {
      const auto place = static_cast<std::size_t>(&access - accesses_.data());
      if (place == last_backward) {
        ARTESIAN_TRY_VOID(update_.begin_ahead(
            under_backward_.begin(std::numeric_limits<double>::infinity()), request_.speculative));
      }
      const bool forward = access.direction == Direction::Forward;
      ARTESIAN_TRY_VOID(forward ? run_forward(access)
                                : run_backward(access, place >= last_backward,
                                               /*first=*/place == last_backward));
    }
    const std::size_t lowest = layout_.first_trainable_stage;
    const bool late = placement_.separate_device && last_backward < accesses_.size();
    if (late) ARTESIAN_TRY_VOID(end_stage(lowest));
    return end(starts_clock, clipped);
  }

  /// A separate device gets no next micro-batch before the gradients of the former are added.
  Result<void> run_forward(const StageAccess& access) {
    if (placement_.separate_device && access.stage == 0) clock_.enqueue_after_work();
    ARTESIAN_TRY_VOID(enter_units(access.units));
    ARTESIAN_TRY_VOID(compute(access));
    put_or_take_inputs(access);
    ARTESIAN_TRY_VOID(prefetcher_.leave(access.units));
    const bool ends = access.stage + 1 == layout_.stages.size();
    return ends ? complete_update() : Result<void>();
  }

  /// Gradients are copied from a separate device while the next stage is computed, and added before
  /// the one after it is enqueued.
  Result<void> run_backward(const StageAccess& access, bool last, bool first) {
    const bool separate = placement_.separate_device;
    ARTESIAN_TRY_VOID(enter_units(access.units));
    put_or_take_inputs(access);
    ARTESIAN_TRY_VOID(compute(access));
    if (last && separate && !first) ARTESIAN_TRY_VOID(end_stage(access.stage + 1));
    if (separate) clock_.enqueue_after_work();
    ARTESIAN_TRY_VOID(add_gradients(access));
    ARTESIAN_TRY_VOID(prefetcher_.leave(access.units));
    return last && !separate ? end_stage(access.stage) : Result<void>();
  }

  friend StepFlow;  // the class that this one is a player of
  Prefetcher& prefetcher() { return prefetcher_; }
  DryUpdate& update() { return update_; }
  auto& under_backward() { return under_backward_; }
  Result<void> update_before_use(std::uint32_t unit) { return update_.update_up_to(unit); }
  /// Receiving shares is counted when a unit is fetched or updated.
  static Result<void> gather_shares(const AccessOrder::Access&) { return {}; }
  static Result<void> settle_shares() { return {}; }
  Result<void> finish_pending() { return update_.finish_step(); }
  Result<void> gradients_are_added(std::size_t stage) {
    update_.at_stage(stage);
    return {};
  }
  Result<void> update_final(std::size_t stage) { return under_backward_.accumulated(stage); }
  Result<void> complete_gradients() {
    ARTESIAN_TRY_VOID(add_held());
    ARTESIAN_TRY_VOID(add_rows());
    for (const std::uint32_t unit : update_.order().trained()) {
      if (additions_.is_whole(unit)) continue;
      StepEvent event{.kind = Kind::Zero, .unit = unit};
      start_at_zero(unit, event.moved.grad);
      leave_buffer(unit, event.moved.grad);
      ARTESIAN_TRY_VOID(add(event));
    }
    return {};
  }

  Result<void> compute(const StageAccess& access) {
    StepEvent event = of_stage(Kind::Compute, access);
    count(event);
    clock_.begin_compute(event);
    // With a separate device the host's thread is idle anyway.
    const bool between = clock_.runs() && !placement_.separate_device;
    const bool goes_on = between && (update_.may_update_next() || update_.may_borrow());
    const int parts = goes_on ? operators : 1;
    for (int part = 0; part < parts; ++part) {
      clock_.compute(event, parts);
      if (between) ARTESIAN_TRY_VOID(update_.update_ahead());
    }
    return {};
  }

  void put_or_take_inputs(const StageAccess& access) {
    StepEvent event = of_stage(Kind::Input, access);
    event.moved.input = input_moves(access);
    count(event);
    clock_.input(event);
  }

  /// Ends the step after the last backward.
  Result<void> end(bool starts_clock, bool clipped) {
    const auto judge = [&]() -> Result<StepVerdict> {
      for (const std::uint32_t unit : update_.order().trained()) {
        StepEvent event{.kind = Kind::Norm, .unit = unit};
        if (placement_.units[unit].grad == Tier::Device) {
          event.moved.grad.to_host = layout_.units[unit].share / kernels::norm_leaf * 8;
        }
        ARTESIAN_TRY_VOID(add(event));
      }
      return StepVerdict{.as_begun = !clipped};
    };
    const auto begin_update = [&] {
      if (starts_clock) clock_.start();
      return update_.begin_step();
    };
    ARTESIAN_TRY_VOID(end_step(StepEnd::Whole, judge, begin_update));
    clock_.end_step();
    return {};
  }

  /// Counts and times an event of gradients.
  Result<void> add(StepEvent& event) {
    count(event);
    const bool passes = !entered_.empty() || !left_.empty();
    if (!passes || !clock_.runs()) clock_.gradients(event);
    if (passes && clock_.runs()) {
      ARTESIAN_TRY_VOID(spill_.add(event, entered_, left_, clock_.bring_gradients(event)));
    }
    entered_.clear();
    left_.clear();
    return {};
  }

  /// Each input is written after the stage's forward and read for its backward.
  Moved input_moves(const StageAccess& access) const {
    Moved moved;
    const KeptInputs& inputs = placement_.inputs;
    if (!inputs.some()) return moved;
    const bool forward = access.direction == Direction::Forward;
    for (std::uint64_t index = 0; index < access.micro_batches; ++index) {
      const Tier home = inputs.home(access.stage, index);
      if (home == Tier::Device) continue;  // it is not moved
      (forward ? moved.to_host : moved.to_device) += inputs.bytes[access.stage];
      if (home != Tier::Nvme) continue;
      (forward ? moved.nvme_write : moved.nvme_read) += inputs.place_bytes(access.stage);
    }
    return moved;
  }

  bool spilled(std::uint32_t unit) const { return placement_.units[unit].grad == Tier::Nvme; }

  Result<void> add_gradients(const StageAccess& access) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> by_unit;
    for (const auto parameter : graph_parameters((*request_.stages)[access.stage])) {
      const std::uint32_t unit = layout_.places[parameter].unit;
      if (layout_.units[unit].trainable) by_unit[unit].push_back(parameter);
    }
    for (auto& [unit, parameters] : by_unit) {
      StepEvent event{.kind = Kind::Gradients, .unit = unit};
      event.micro_batches = access.micro_batches;
      for (const auto parameter : parameters) {
        const std::uint64_t numel = layout_.places[parameter].numel;
        event.numel += numel;
        event.added += numel * additions_.additions(parameter, access.micro_batches);
        if (additions_.sets(parameter)) event.set += numel;
      }
      event.moved.grad = gradient_moves(event);
      if (placement_.exchange.once) {
        held_[unit].insert(parameters.begin(), parameters.end());
        event.moved.grad.bus = 0;
        ARTESIAN_TRY_VOID(add(event));
        continue;
      }
      enter_buffer(unit, parameters, event.moved.grad);
      leave_buffer(unit, event.moved.grad);
      for (const auto parameter : parameters) additions_.added(parameter);
      ARTESIAN_TRY_VOID(add(event));
    }
    return {};
  }

  /// Each rank's sums of a step, which it has held.
  Result<void> add_held() {
    for (const auto& [unit, parameters] : std::exchange(held_, {})) {
      StepEvent event{.kind = Kind::Gradients, .unit = unit};
      event.micro_batches = placement_.ranks;
      for (const auto parameter : parameters) event.set += layout_.places[parameter].numel;
      event.numel = event.set;
      event.added = event.set * placement_.ranks;
      event.moved.grad.bus = placement_.exchange.bytes_of(layout_.units[unit]);
      if (placement_.exchange.on_device) {  // there and, for the host to add them, back
        event.moved.grad.to_device = event.moved.grad.to_host =
            layout_.units[unit].image * placement_.exchange.element_size;
      }
      enter_buffer(unit, {parameters.begin(), parameters.end()}, event.moved.grad);
      leave_buffer(unit, event.moved.grad);
      for (const auto parameter : parameters) additions_.added(parameter);
      ARTESIAN_TRY_VOID(add(event));
    }
    return {};
  }

  Moved gradient_moves(const StepEvent& event) {
    const std::uint64_t ranks = placement_.ranks;
    const std::uint64_t param_size = dtype_size(placement_.param_dtype);
    Moved moved;
    switch (placement_.units[event.unit].gradient) {
      case Route::OnDevice: break;
      case Route::Queues: moved.to_host = event.added * param_size; break;
      default: moved.to_host = grad_bytes(event.added) / ranks;
    }
    moved.bus = event.numel * param_size / ranks * (ranks - 1) * event.micro_batches;
    if (placement_.exchange.ranks != 0) {
      moved.bus = placement_.exchange.bytes_of(layout_.units[event.unit]) * event.micro_batches;
    }
    return moved;
  }

  /// Counts the buffer's transfers if something is added to these parameters of a spilled unit, by
  /// all micro-batches that run at once: on the first rank, which has the largest share.
  void enter_buffer(std::uint32_t unit, const std::vector<std::uint32_t>& parameters,
                    Moved& moved) {
    if (!spilled(unit)) return;
    struct Piece {
      std::uint64_t first;
      std::uint64_t count;
    };
    std::vector<Piece> pieces;
    for (const auto parameter : parameters) {
      const ParameterPlace& place = layout_.places[parameter];
      const auto part = layout_.units[unit].in_share(place.first, place.numel, /*rank=*/0);
      if (part.count() != 0) pieces.push_back({part.begin, part.count()});
    }
    entered_ = additions_.enter(unit, pieces).read;
    moved.nvme_read = group_bytes(unit, entered_);
  }
  void leave_buffer(std::uint32_t unit, Moved& moved) {
    if (!spilled(unit)) return;
    left_ = additions_.leave(unit);
    moved.nvme_write = group_bytes(unit, left_);
  }
  std::uint64_t group_bytes(std::uint32_t unit, const std::vector<std::uint64_t>& groups) const {
    std::uint64_t elements = 0;
    for (const auto group : groups) elements += placement_.sub_group_numel(unit, group);
    return grad_bytes(elements);
  }
  void start_at_zero(std::uint32_t unit, Moved& moved) {
    if (additions_.zero_rest(unit).in_buffer) enter_buffer(unit, {}, moved);
  }

  Result<void> add_rows() {
    for (const StageSpec& stage : *request_.stages) {
      if (stage.lookup.has_value()) ARTESIAN_TRY_VOID(add_rows_of(*stage.lookup));
    }
    return {};
  }

  Result<void> add_rows_of(std::uint32_t parameter) {
    const ParameterPlace& place = layout_.places[parameter];
    if (!layout_.units[place.unit].trainable) return {};
    StepEvent event{.kind = Kind::Rows, .unit = place.unit};
    event.numel = event.added = request_.tokens * request_.lookup_width * request_.micro_batches;
    // A rank receives, for its share of the table, the other ranks' rows in fp32, once per step.
    const std::uint64_t ranks = placement_.ranks;
    const std::uint64_t rows = std::max(request_.tokens * request_.micro_batches, request_.rows);
    const std::uint64_t row = sizeof(std::int64_t) + request_.lookup_width * sizeof(float);
    event.moved.grad.bus = rows * row / ranks * (ranks - 1);
    if (placement_.separate_device) {
      event.moved.grad.to_host = event.numel * 4;
      if (placement_.units[place.unit].gradient == Route::OnDevice) {
        event.moved.grad.to_device = event.numel * 4;
      }
    }
    start_at_zero(place.unit, event.moved.grad);  // the other rows
    enter_buffer(place.unit, {parameter}, event.moved.grad);
    leave_buffer(place.unit, event.moved.grad);
    return add(event);
  }

  const StepPlanRequest& request_;
  const bool timed_;
  const Placement& placement_;
  const Layout& layout_;
  const std::vector<StageAccess> accesses_;
  GradientAdditions additions_;
  std::map<std::uint32_t, std::set<std::uint32_t>> held_;  // by unit: held parameters
  std::vector<std::uint64_t> entered_;  // sub-groups that the current event reads; and writes
  std::vector<std::uint64_t> left_;
  std::vector<bool> filled_;  // by unit: whether the update fills its slot
  StepPlan plan_;
  StepClock clock_;
  DrySpill spill_;
  DrySlots slots_;
  Prefetcher prefetcher_;
  DryUpdate update_;
  DryGradients gradients_;
  UnderBackwardFlow<DryGradients, DryUpdate> under_backward_;
};

}  // namespace

Result<StepPlan> plan_step(const StepPlanRequest& request) {
  Rehearsal rehearsal(request, nullptr);
  ARTESIAN_TRY(step, rehearsal.run());
  static_cast<void>(step);  // the plan needs no seconds
  return rehearsal.take_plan();
}

Result<TimedStep> simulate_step(const StepTimeRequest& request) {
  return Rehearsal(request.step, &request.timing).run();
}

}  // namespace artesian::zero3
