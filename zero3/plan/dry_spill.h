// DrySpill: simulates the passes over spilled gradients (step/gradients.h) in the order of
// tiering/ring_order.h, as plan/dry_update.h simulates the update's: one pass reads into the buffer
// the sub-groups that receive an addition, and one writes the sub-groups that the buffer holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tiering/ring_order.h"
#include "zero3/plan/step_clock.h"

namespace artesian::zero3 {

class DrySpill {
 public:
  using Task = StepClock::Task;
  using Groups = std::vector<std::uint64_t>;  // indices of sub-groups, ascending

  /// Both must outlive it.
  DrySpill(const Placement& placement, StepClock& clock)
      : clock_(clock),
        separate_(placement.separate_device),
        grain_(sub_group_grain(placement)),
        own_(std::max(placement.ring_count, 1u)),
        ring_(*this) {}

  /// Adds the time of an event of a spilled unit's gradients, which have arrived once `come` is
  /// done. `read`, `written`: the sub-groups of the two passes.
  Result<void> add(const StepEvent& event, const Groups& read, const Groups& written, Task come) {
    const Moved& moved = event.moved.grad;
    begin_ = clock_.join({come, clock_.worked});
    ARTESIAN_TRY_VOID(pass(event, tiering::RingNeed::ToRead, read, moved.nvme_read));
    clock_.worked = clock_.add(event.kind, clock_.worker(),
                               clock_.seconds_for(clock_.gradient_bytes(event), &Rates::memory),
                               {begin_, clock_.worked});
    ARTESIAN_TRY_VOID(pass(event, tiering::RingNeed::ToWrite, written, moved.nvme_write));
    if (!separate_) clock_.computed = clock_.worked;
    return {};
  }

 private:
  struct Item {
    Task done = Schedule::none;  // last use of the item: a transfer, or the work on its bytes
  };
  using Ring = tiering::RingOrder<DrySpill, Item>;
  using RingNeed = tiering::RingNeed;
  using RingTask = tiering::RingTask;

  /// Runs one pass. Sub-groups that count as one are one task.
  Result<void> pass(const StepEvent& event, RingNeed need, const Groups& groups,
                    std::uint64_t bytes) {
    std::vector<RingTask> tasks;
    for (const std::uint64_t group : groups) {
      const RingTask task{event.unit, group / grain_};
      if (tasks.empty() || tasks.back() != task) tasks.push_back(task);
    }
    if (tasks.empty()) return {};
    kind_ = event.kind;
    need_ = need;
    bytes_ = bytes;
    count_ = tasks.size();
    ARTESIAN_TRY_VOID(ring_.begin(tasks));
    return ring_.finish();
  }

  friend Ring;  // RingOrder uses this class as its port
  std::uint32_t count() const { return static_cast<std::uint32_t>(own_.size()); }
  Item& own(std::uint32_t index) { return own_[index]; }
  static bool borrowed(const Item&) { return false; }
  static bool is_free(const Item&) { return true; }
  bool is_idle(const Item& item) const { return clock_.is_past(item.done); }
  static Result<void> finish(const Item&) { return {}; }
  static Item* borrow() { return nullptr; }
  static bool may_borrow() { return false; }
  static void give_back(const Item&) {}
  bool computes_elsewhere() const { return separate_; }
  bool writes() const { return need_ == RingNeed::ToWrite; }
  RingNeed need(const RingTask&) const { return need_; }
  Result<void> read(const RingTask&, Item& item) {
    item.done = clock_.read_param(kind_, bytes_, {begin_, item.done}, count_);
    return {};
  }
  /// Verifies the bytes read, or seals the bytes to be written.
  Result<void> work(std::size_t, const RingTask&, Item* item) {
    const double seconds = clock_.checksum_seconds(bytes_) / static_cast<double>(count_);
    clock_.worked = clock_.add(kind_, clock_.worker(), seconds, {item->done, clock_.worked});
    item->done = clock_.worked;
    if (!writes()) return {};
    item->done = clock_.write_param(kind_, bytes_, {clock_.worked}, count_);
    clock_.spilled = clock_.join({clock_.spilled, item->done});
    return {};
  }
  static std::size_t together_max() { return 1; }
  static Result<void> work_together(std::size_t, std::span<const RingTask>) { return {}; }

  StepClock& clock_;
  const bool separate_;
  const std::uint64_t grain_;  // sub-groups that count as one
  std::vector<Item> own_;
  Ring ring_;
  Task begin_ = Schedule::none;  // the reads wait for it
  // Of the pass under way:
  StepEvent::Kind kind_ = StepEvent::Kind::Gradients;
  RingNeed need_ = RingNeed::ToRead;
  std::uint64_t bytes_ = 0;  // bytes of all its tasks
  std::uint64_t count_ = 1;  // number of its tasks
};

}  // namespace artesian::zero3
