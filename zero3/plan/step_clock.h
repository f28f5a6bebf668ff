// StepClock: how long the operations of a training step take on the resources of a machine
// (zero3/plan/schedule.h). It decides nothing: the rehearsal (zero3/plan/rehearsal.h) reports the
// operations in the order of the engine's thread.
//
// On a CPU one thread pool computes the model and the optimizer. With a separate device, the host
// CPU adds gradients and updates state that is not on the device, while the device computes. The
// same thread enqueues, so the device begins nothing before the host's earlier work is done.
//
// With several ranks, gradients are exchanged while earlier stages are in backward. The norm waits
// for all of them; computing does not, as if buckets were unlimited. The other ranks' updated
// shares of a unit arrive once this rank has updated its own share, in the order of use; if ranks
// divide the parameters of separate devices, when the host comes to what uses them. A stage waits
// only for its own units, so most shares arrive under forward. Ranks on CPUs do so only for
// parameters that they gather ahead of use: else the thread that computes waits for the bus.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/check.h"
#include "zero3/plan/step_timing.h"

namespace artesian::zero3 {

/// How many sub-groups are treated as one if a model has very many.
inline std::uint64_t sub_group_grain(const Placement& placement) {
  constexpr std::uint64_t most = 4096;  // most spans recorded per step
  std::uint64_t count = 0;
  for (std::uint32_t unit = 0; unit < placement.layout.units.size(); ++unit) {
    count += placement.sub_group_count(unit);
  }
  return count / most + 1;
}

class StepClock {
 public:
  using Kind = StepEvent::Kind;
  using Route = tiering::Route;
  using Tier = tiering::Tier;
  using Task = Schedule::Task;

  /// Nothing takes time until start(), and never without `timing`, which must outlive the clock.
  StepClock(const Placement& placement, const StepTiming* timing)
      : plan_(placement),
        timing_(timing),
        separate_(placement.separate_device),
        schedule_(timing != nullptr ? timing->rates.disk : Disk::Shared),
        fetched_(placement.layout.units.size(), Schedule::none),
        lacks_(fetched_.size()),
        put_(placement.layout.stages.size(), Schedule::none),
        reduced_(fetched_),
        gathered_(fetched_) {
    if (timing == nullptr) return;
    const std::size_t stages = placement.layout.stages.size();
    ARTESIAN_CHECK(timing->stages.forward.size() == stages, timing->stages.forward.size());
    ARTESIAN_CHECK(timing->stages.backward.size() == stages, timing->stages.backward.size());
  }
  void start() { runs_ = timing_ != nullptr; }
  bool runs() const noexcept { return runs_; }
  const Rates& rates() const noexcept { return timing_->rates; }

  /// Starts counting a step's seconds.
  void begin_step() {
    begin_ = schedule_.finish(barrier);
    time_ = {};
  }
  /// Ends the step, with the gathering that its own update causes under way.
  void end_step() {
    norm_begun_ = false;
    gather_below(static_cast<std::uint32_t>(gathered_.size()));
    barrier = computed = worked = join({computed, worked});
    end_ = schedule_.finish(barrier);
  }
  /// Returns the seconds of a step and of each resource in it: means over the `steps` since
  /// begin_step().
  StepTime take_time(std::uint64_t steps) {
    ARTESIAN_CHECK(end_ >= begin_ && steps != 0, end_, begin_);
    const auto count = static_cast<double>(steps);
    time_.seconds = (end_ - begin_) / count;
    time_.model_seconds /= count;
    for (double& seconds : time_.busy) seconds /= count;
    for (StepSpan& span : time_.spans) {
      span.begin -= begin_;
      span.end -= begin_;
    }
    // A step cannot take less time than any resource works for it, however much earlier steps have
    // left undone.
    const double disk = std::max(busy(Resource::DiskRead) + busy(Resource::DiskWrite),
                                 busy(Resource::ParamRead) + busy(Resource::ParamWrite));
    if (timing_ != nullptr && rates().disk == Disk::Shared) {
      time_.seconds = std::max(time_.seconds, disk);
    }
    for (const double seconds : time_.busy) time_.seconds = std::max(time_.seconds, seconds);
    return std::move(time_);
  }

  // The functions below add the time of one event of a step each.
  void fetch(const StepEvent& event) {
    gather_below(event.unit);
    const Moved& moved = event.moved.param;
    Task task = read_param(event.kind, moved.nvme_read, {computed, barrier});
    if (separate_) {
      task = add(event.kind, Resource::ToDevice, seconds_for(moved.to_device, &Rates::to_device),
                 {task});
    }
    const double seconds = seconds_for(moved.bus, &Rates::bus);
    if (gathers_at_use(event.unit)) {
      lacks_[event.unit] = {seconds, task};
    } else {
      task = add(event.kind, Resource::Bus, seconds, {task});
    }
    fetched_[event.unit] = task;
  }
  /// On a CPU the thread pool verifies and expands fetched bytes.
  void await(const StepEvent& event) {
    const UnitPlacement& place = plan_.units[event.unit];
    const std::uint64_t image = plan_.layout.units[event.unit].image;
    double seconds = 0.0;
    if (!separate_) {
      if (event.moved.param.to_device != 0) {
        seconds += seconds_for(event.moved.param.to_device + image * dtype_size(place.computed),
                               &Rates::memory);
      }
      if (place.param == Tier::Nvme) {
        seconds += checksum_seconds(image * dtype_size(plan_.param_dtype));
      }
    }
    computed = add(event.kind, Resource::Compute, seconds, {computed, fetched_[event.unit]});
  }
  /// Inputs are written after computing, and read while the previous stage computes.
  void input(const StepEvent& event) {
    const Moved& moved = event.moved.input;
    const std::uint64_t bytes = moved.to_host + moved.to_device;
    const double work = (separate_ ? 0.0 : seconds_for(2 * bytes, &Rates::memory)) +
                        checksum_seconds(moved.nvme_read + moved.nvme_write);
    if (event.direction == Direction::Forward) {
      Task task = computed;
      if (separate_) {
        task = add(event.kind, Resource::ToHost, seconds_for(bytes, &Rates::to_host), {task});
      }
      task = add(event.kind, worker(), work, {task});
      if (!separate_) computed = task;
      put_[event.stage] = write_param(event.kind, moved.nvme_write, {task});
      return;
    }
    Task task = read_param(event.kind, moved.nvme_read, {put_[event.stage], taken_});
    taken_ = computed;
    task = add(event.kind, worker(), work, {task, separate_ ? Schedule::none : computed});
    if (separate_) {
      task = add(event.kind, Resource::ToDevice, seconds_for(bytes, &Rates::to_device), {task});
    }
    computed = join({computed, task});
  }
  /// Gradients go over the bus, and to the host if the device is separate. Computing does not wait
  /// for the bus: kernel time counts at once, although it adds gradients that arrive later.
  Task bring_gradients(const StepEvent& event) {
    const Moved& moved = event.moved.grad;
    if (event.kind == Kind::Norm && !norm_begun_) begin_norm();
    if (event.kind == Kind::Gradients) sum_on_device(event);
    Task sent = computed;  // from the host, if it holds them
    if (event.kind == Kind::Gradients && moved.to_device != 0) {
      sent = add(event.kind, Resource::ToDevice, seconds_for(moved.to_device, &Rates::to_device),
                 {computed, worked});
    }
    const Task reduced =
        add(event.kind, Resource::Bus, seconds_for(moved.bus, &Rates::bus), {sent});
    if (!separate_) computed = reduced;
    reduced_[event.unit] = join({reduced_[event.unit], reduced});
    if (event.kind == Kind::Rows) computed = reduced;  // nothing is left to wait for
    if (!separate_ || plan_.units[event.unit].gradient == Route::OnDevice) return computed;
    return add(event.kind, Resource::ToHost, seconds_for(moved.to_host, &Rates::to_host),
               {reduced});
  }
  /// The same, then the kernels. Spilled gradients: plan/dry_spill.h.
  void gradients(const StepEvent& event) {
    if (!runs_) return;
    const Task come = bring_gradients(event);
    const std::uint64_t bytes =
        event.kind == Kind::Norm ? plan_.grad_bytes(event.unit) : gradient_bytes(event);
    if (plan_.units[event.unit].gradient == Route::OnDevice) {
      computed =
          add(event.kind, Resource::Compute, seconds_for(bytes, &Rates::device_memory), {come});
      return;
    }
    worked = add(event.kind, worker(), seconds_for(bytes, &Rates::memory), {come, worked});
    if (!separate_) computed = worked;
  }
  void update_on_device(const StepEvent& event) {
    computed = add(event.kind, Resource::Compute,
                   seconds_for(update_bytes(event.unit), &Rates::device_memory), {computed});
    if (gathers_at_use(event.unit)) return gather(event.unit, event.moved.param.bus, 1, computed);
    to_gather_.push_back({event.unit, event.moved.param.bus, computed});
  }
  /// Makes what is computed from here on wait for the host's work so far.
  void enqueue_after_work() { enqueued_ = worked; }
  /// Before a stage computes, its units must have been gathered from all ranks.
  void begin_compute(const StepEvent& event) {
    for (const std::uint32_t unit : plan_.layout.stages[event.stage]) {
      const Lack lack = std::exchange(lacks_[unit], {});
      if (lack.seconds != 0.0) {
        gathered_[unit] = add(Kind::Fetch, Resource::Bus, lack.seconds, {lack.after, enqueued_});
      }
      computed = join({computed, gathered_[unit]});
    }
  }
  /// Adds one of `parts` equal parts of the computation.
  void compute(const StepEvent& event, int parts) {
    if (!runs_) return;
    const StageSeconds& stages = timing_->stages;
    const auto& by_stage = event.direction == Direction::Forward ? stages.forward : stages.backward;
    const double seconds = by_stage[event.stage] * static_cast<double>(event.micro_batches) / parts;
    time_.model_seconds += seconds;
    computed = add(event.kind, Resource::Compute, seconds, {computed, barrier, enqueued_});
  }
  /// Number of items of this size that fit in half of the memory that activations have freed after
  /// that stage's backward, assuming that all stages keep the same amount.
  std::uint64_t items_left_by(std::size_t stage, std::uint64_t item_bytes) const {
    if (!runs_ || item_bytes == 0) return 0;
    const std::uint64_t stages = plan_.layout.stages.size();
    return timing_->activation_bytes / stages * (stages - stage) / 2 / item_bytes;
  }

  // Tasks of the processor that updates, and of spilled gradients.
  /// Returns the bytes that the kernels read and write: each micro-batch's gradient, on a CPU made
  /// fp32 before where it is not, from a device rounded there; and what it is added to, which is
  /// only written where it is set.
  std::uint64_t gradient_bytes(const StepEvent& event) const {
    const std::uint64_t size = dtype_size(plan_.grad_dtype);
    const std::uint64_t computed_size = dtype_size(plan_.compute_dtype);
    const bool comes = plan_.units[event.unit].gradient == Route::Queues;
    const std::uint64_t added = comes ? dtype_size(plan_.param_dtype) : 4;
    const std::uint64_t cast = !separate_ && computed_size != 4 ? computed_size + 4 : 0;
    const std::uint64_t each = cast + added + 2 * size;
    return (event.added * each - event.set * size) / plan_.ranks;
  }
  /// A task without work is not queued; it ends when the tasks that it waits for end.
  Task add(Kind kind, Resource resource, double seconds, std::initializer_list<Task> after) {
    if (seconds == 0.0) return join(after);
    const Task task = schedule_.add(resource, seconds, after);
    time_.busy[static_cast<std::size_t>(resource)] += seconds;
    const double begin = schedule_.start(task);
    auto& spans = time_.spans;
    const bool joins = !spans.empty() && spans.back().resource == resource &&
                       spans.back().kind == kind && spans.back().end == begin;
    if (joins) {
      spans.back().end = schedule_.finish(task);
    } else {
      spans.push_back({resource, kind, begin, schedule_.finish(task)});
    }
    return task;
  }
  Task join(std::initializer_list<Task> after) {
    return runs_ ? schedule_.join(after) : Schedule::none;
  }
  /// Reads of parameters, spilled gradients and kept inputs; `count`: the read is one of this many
  /// parts.
  Task read_param(Kind kind, std::uint64_t bytes, std::initializer_list<Task> after,
                  std::uint64_t count = 1) {
    if (!runs_) return Schedule::none;
    const auto rate = rates().param_read > 0.0 ? &Rates::param_read : &Rates::disk_read;
    return add(kind, rates().param_apart ? Resource::ParamRead : Resource::DiskRead,
               seconds_for(bytes, rate) / static_cast<double>(count), after);
  }
  Task write_param(Kind kind, std::uint64_t bytes, std::initializer_list<Task> after,
                   std::uint64_t count = 1) {
    if (!runs_) return Schedule::none;
    const auto rate = rates().param_write > 0.0 ? &Rates::param_write : &Rates::disk_write;
    return add(kind, rates().param_apart ? Resource::ParamWrite : Resource::DiskWrite,
               seconds_for(bytes, rate) / static_cast<double>(count), after);
  }
  double seconds_for(std::uint64_t bytes, double Rates::*rate) const {
    if (bytes == 0 || !runs_) return 0.0;
    ARTESIAN_CHECK(rates().*rate > 0.0, bytes);
    return static_cast<double>(bytes) / (rates().*rate);
  }
  double checksum_seconds(std::uint64_t bytes) const {
    return runs_ && rates().checksum > 0.0 ? seconds_for(bytes, &Rates::checksum) : 0.0;
  }
  bool two_places() const noexcept {
    return runs_ && (rates().param_read > 0.0 || rates().param_write > 0.0);
  }
  Resource worker() const noexcept { return separate_ ? Resource::Host : Resource::Compute; }
  /// Bytes that the update's kernels read and write: the state, in place; the gradient; the new
  /// parameter, and the old one if needed.
  std::uint64_t update_bytes(std::uint32_t unit) const {
    const std::uint64_t param = plan_.update_reads_param(unit) ? 2 : 1;
    return plan_.layout.units[unit].share *
           (2 * plan_.state_size(unit) + dtype_size(plan_.grad_dtype) +
            param * dtype_size(plan_.param_dtype));
  }
  /// The other ranks' updated shares of a unit, or of a part of it, arrive after that.
  void gather(std::uint32_t unit, std::uint64_t bytes, std::uint64_t parts, Task updated) {
    const double seconds = seconds_for(bytes, &Rates::bus) / static_cast<double>(parts);
    if (gathers_at_use(unit)) {
      lacks_[unit] = {lacks_[unit].seconds + seconds, join({lacks_[unit].after, updated})};
      return;
    }
    const Task here = separate_ ? Schedule::none : computed;
    gathered_[unit] = add(Kind::Update, Resource::Bus, seconds, {updated, here});
    if (!separate_) computed = gathered_[unit];
  }
  /// True if the task is done when the thread that runs the step gets here.
  bool is_past(Task task) const {
    double now = schedule_.finish(computed);
    if (!separate_) now = std::max(now, schedule_.finish(worked));
    return schedule_.finish(task) <= now;
  }
  bool is_reduced(std::uint32_t unit) const { return is_past(reduced_[unit]); }
  Task reduced(std::uint32_t unit) const { return reduced_[unit]; }

  Task computed = Schedule::none;  // last task of the device that computes the model
  Task worked = Schedule::none;    // last task of the host's CPU
  Task spilled = Schedule::none;   // last write of gradients that spill
  Task barrier = Schedule::none;   // end of the previous step

 private:
  struct Lack {
    double seconds = 0.0;
    Task after = Schedule::none;  // when this rank's share is there
  };
  struct Gather {
    std::uint32_t unit = 0;
    std::uint64_t bytes = 0;
    Task updated = Schedule::none;  // update of this rank's share
  };
  /// True if the other ranks' shares of a unit come when the host is about to enqueue what uses it:
  /// a separate device computes meanwhile.
  bool gathers_at_use(std::uint32_t unit) const noexcept {
    return separate_ && plan_.params_cut && plan_.layout.units[unit].is_cut();
  }
  double busy(Resource resource) const { return time_.busy[static_cast<std::size_t>(resource)]; }
  /// The host waits until all gradients are written; with several ranks, until they are summed over
  /// all.
  void begin_norm() {
    for (const Task reduced : reduced_) computed = join({computed, reduced});
    (separate_ ? worked : computed) =
        join({computed, spilled, separate_ ? worked : Schedule::none});
    norm_begun_ = true;
  }
  /// Gathers the units that precede a fetched one: units updated at a step's end arrive in the
  /// order in which the next step uses them, and so do its prefetches.
  void gather_below(std::uint32_t unit) {
    const auto end = std::find_if(to_gather_.begin(), to_gather_.end(),
                                  [unit](const Gather& fresh) { return fresh.unit >= unit; });
    std::for_each(to_gather_.begin(), end, [this](const Gather& fresh) {
      gather(fresh.unit, fresh.bytes, 1, fresh.updated);
    });
    to_gather_.erase(to_gather_.begin(), end);
  }
  /// A separate device first sums the micro-batches: it reads two operands and writes one.
  void sum_on_device(const StepEvent& event) {
    const std::uint64_t summed = event.micro_batches * event.numel - event.added;
    const std::uint64_t bytes = summed * 3 * dtype_size(plan_.grad_dtype);
    computed =
        add(event.kind, Resource::Compute, seconds_for(bytes, &Rates::device_memory), {computed});
  }

  const Placement& plan_;
  const StepTiming* const timing_;
  const bool separate_;
  bool runs_ = false;
  Schedule schedule_;
  std::vector<Task> fetched_;       // one for each unit
  std::vector<Lack> lacks_;         // by unit: other ranks' shares that are gathered at its use
  std::vector<Task> put_;           // by stage: the write of its inputs to their tier
  Task taken_ = Schedule::none;     // task before the wait for the last inputs
  Task enqueued_ = Schedule::none;  // the host's work before it enqueues what is computed next
  std::vector<Task> reduced_;       // by unit: when the gradients of all ranks are added
  std::vector<Task> gathered_;      // by unit: parameters updated by all ranks have arrived
  std::vector<Gather> to_gather_;   // units updated at a step's end that are not gathered yet
  bool norm_begun_ = false;         // whether the norm has begun in this step
  double begin_ = 0.0;
  double end_ = 0.0;
  StepTime time_;
};

}  // namespace artesian::zero3
