// DryUpdate: simulates a step's update (flow/update_flow.h) and its ring (tiering/ring_order.h) in
// time: a buffer of the ring is represented by the end of its last transfer. A read starts as soon
// as the item's previous content is written, as if the engine checked all the time. If the clock
// does not run, every transfer ends at once, and each unit is one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "zero3/flow/ring_need.h"
#include "zero3/flow/update_flow.h"
#include "zero3/plan/step_clock.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

struct DryItem {
  StepClock::Task done = Schedule::none;
  bool lent = false;
};

struct DryUpdateHooks {
  /// True if the unit's slot holds parameters or is being fetched.
  std::function<bool(std::uint32_t unit)> live;
  /// True if the unit's slot will stay until forward uses it.
  std::function<bool(std::uint32_t unit)> stays;
  /// Called with what the step does to a unit and the bytes that this moves, before it is done; may
  /// change the bytes.
  std::function<void(StepEvent& event)> done;
};

class DryUpdate : public UpdateFlow<DryUpdate> {
 public:
  /// Both must outlive it.
  DryUpdate(const Placement& placement, StepClock& clock, DryUpdateHooks hooks)
      : UpdateFlow(placement),
        plan_(placement),
        clock_(clock),
        hooks_(std::move(hooks)),
        grain_(sub_group_grain(placement)),
        updates_(placement.layout.units.size()),
        needs_(placement.layout.units.size()),
        own_(std::max(placement.ring_count, 1u)),
        ring_(*this) {}

  Result<void> begin_step() {
    return defer([] {});
  }
  /// Reports that backward is at this stage.
  void at_stage(std::size_t stage) noexcept { stage_ = stage; }
  /// True if the ring may borrow memory now.
  bool may_borrow() const { return lent_.size() < lendable_; }

 private:
  using Task = StepClock::Task;
  using Kind = StepEvent::Kind;
  using RingNeed = tiering::RingNeed;
  using RingTask = tiering::RingTask;
  using Route = tiering::Route;
  using Item = DryItem;
  using Ring = tiering::RingOrder<DryUpdate, DryItem>;
  struct UnitUpdate {
    Moved moved;            // bytes for the whole unit, as are the two below
    Moved state;            // the optimizer's part of them, and the
    std::uint64_t bus = 0;  // bytes over the bus, and bytes by the kernels:
    std::uint64_t touched = 0;
    std::uint64_t count = 1;  // tasks among which they are divided
    std::uint64_t reads = 0;  // reading tasks, among which the bytes read are divided
    // tasks with an item of the ring, among which the bytes written are divided
    std::uint64_t items = 0;
    bool told = false;  // the bytes are known
  };

  friend UpdateFlow;  // the class that this one is a player of
  Ring& ring() noexcept { return ring_; }
  bool separate() const noexcept { return plan_.separate_device; }
  Result<void> begin_pass() {
    std::vector<RingTask> tasks;
    for (const std::uint32_t unit : order().pass()) {
      UnitUpdate& update = updates_[unit] = {};
      MovedByKind moved = update_moves(plan_, unit, /*live=*/true);
      if (speculative() && order().is_ahead(unit)) moved.optimizer += saved_moves(plan_, unit);
      know(unit, moved);
      if (clock_.runs()) update.count = (plan_.sub_group_count(unit) + grain_ - 1) / grain_;
      if (needs_[unit].size() != update.count) find_needs(unit, update.count);
      for (std::uint64_t index = 0; index < update.count; ++index) {
        tasks.push_back({unit, index});
        const RingNeed each = need(tasks.back());
        update.reads += each == RingNeed::ToRead ? 1 : 0;
        update.items += each != RingNeed::Nothing ? 1 : 0;
      }
    }
    const Task others = step_under_way() ? clock_.worked : clock_.barrier;
    not_before_ = clock_.join({clock_.computed, others});
    return ring_.begin(tasks);
  }
  Result<void> abandon_pass() {
    ARTESIAN_TRY(done, ring_.abandon());
    done_ = std::move(done);
    clock_.computed = clock_.join({clock_.computed, read_});
    return {};
  }
  void lend(bool some) {
    lendable_ = some ? clock_.items_left_by(stage_, plan_.ring_item_bytes * grain_) : 0;
  }
  bool borrows() const noexcept { return !lent_.empty(); }
  /// Runs before the whole update, which waits for it.
  Result<void> measure() {
    for (const std::uint32_t unit : order().trained()) {
      const Moved moved = measure_moves(plan_, unit).total();
      const Task read =
          clock_.add(Kind::Update, Resource::DiskRead,
                     clock_.seconds_for(moved.nvme_read, &Rates::disk_read), {clock_.barrier});
      const double work = clock_.seconds_for(clock_.update_bytes(unit) / 2, &Rates::memory) +
                          clock_.checksum_seconds(moved.nvme_read);
      clock_.computed = clock_.add(Kind::Update, clock_.worker(), work, {clock_.computed, read});
    }
    return {};
  }
  static void fix(std::uint32_t) noexcept {}
  /// Under backward, a unit's bytes depend on whether it has a slot when its gradient is final.
  void begin_refresh(std::uint32_t unit) {
    if (under_backward()) tell(unit);
  }
  Result<void> end_refresh(std::uint32_t unit) {
    ARTESIAN_CHECK(updates_[unit].told, unit);
    return {};
  }
  bool keeps(std::uint32_t unit) const {
    return plan_.units[unit].aliased() || (hooks_.live(unit) && hooks_.stays(unit));
  }
  bool reduced(std::uint32_t unit) const { return clock_.is_reduced(unit); }
  static void shadows(Shadows) noexcept {}
  /// Reads the old parameters, restores them, and writes them.
  Result<void> restore() {
    Task& working = separate() ? clock_.worked : clock_.computed;
    for (const RingTask& task : done_) {
      StepEvent event{.kind = Kind::Restore, .unit = task.unit};
      const UnitUpdate& update = updates_[task.unit];
      const bool last = task.index + 1 == update.count;
      event.moved.param = restore_moves(plan_, task.unit);
      if (last) hooks_.done(event);
      const Moved& moved = event.moved.param;
      const Task read = clock_.read_param(Kind::Restore, moved.nvme_read, {working}, update.count);
      const double seconds = clock_.seconds_for(update.touched / 4, &Rates::memory) +
                             clock_.checksum_seconds(moved.nvme_read + moved.nvme_write);
      working = clock_.add(Kind::Restore, clock_.worker(),
                           seconds / static_cast<double>(update.count), {working, read});
      written_ = clock_.join(
          {written_, clock_.write_param(Kind::Restore, moved.nvme_write, {working}, update.count)});
    }
    working = clock_.join({working, written_});
    for (const std::uint32_t unit : order().ahead()) updates_[unit].told = false;
    done_.clear();
    return {};
  }
  static Result<void> settle() noexcept { return {}; }
  Result<void> update_on_device(std::uint32_t unit) {
    StepEvent event{.kind = Kind::Update, .unit = unit};
    event.moved = update_moves(plan_, unit, hooks_.live(unit));
    hooks_.done(event);
    clock_.update_on_device(event);
    return {};
  }
  static void count_updates() noexcept {}
  /// The host waits for these writes before it adds new gradients.
  Result<void> drain() {
    Task& waits = separate() ? clock_.worked : clock_.computed;
    waits = clock_.join({clock_.computed, clock_.worked, written_});
    written_ = Schedule::none;
    return ring_.give_back_borrowed();
  }

  friend Ring;  // RingOrder uses this class as its port
  std::uint32_t count() const { return static_cast<std::uint32_t>(own_.size()); }
  Item& own(std::uint32_t index) { return own_[index]; }
  static bool borrowed(const Item& item) { return item.lent; }
  static bool is_free(const Item&) { return true; }
  bool is_idle(const Item& item) const { return clock_.is_past(item.done); }
  Result<void> finish(const Item&) { return {}; }
  Item* borrow() { return &lent_.emplace_back(Item{.lent = true}); }
  void give_back(const Item& item) {
    const auto place =
        std::find_if(lent_.begin(), lent_.end(), [&](const Item& each) { return &each == &item; });
    ARTESIAN_CHECK(place != lent_.end());
    lent_.erase(place);
  }
  bool computes_elsewhere() const { return separate(); }
  static bool writes() { return true; }
  RingNeed need(const RingTask& task) const { return needs_[task.unit][task.index]; }
  /// The item's `done` time, before and after.
  Result<void> read(const RingTask& task, Item& item) {
    const UnitUpdate& update = updates_[task.unit];
    const Task before = clock_.join({not_before_, item.done});
    const auto part = [&](double seconds) { return seconds / static_cast<double>(update.reads); };
    const bool apart = clock_.two_places();
    const std::uint64_t bytes = apart ? update.state.nvme_read : update.moved.nvme_read;
    item.done = clock_.add(Kind::Update, Resource::DiskRead,
                           part(clock_.seconds_for(bytes, &Rates::disk_read)), {before});
    if (apart) {
      const Task rest =
          clock_.read_param(Kind::Update, update.moved.nvme_read - bytes, {before}, update.reads);
      item.done = clock_.join({item.done, rest});
    }
    read_ = item.done;
    if (!separate()) return {};
    item.done =
        clock_.add(Kind::Update, Resource::ToHost,
                   part(clock_.seconds_for(update.moved.to_host, &Rates::to_host)), {item.done});
    return {};
  }
  /// The unit's slot, if any, has its parameters once they are copied or cast.
  Result<void> work(std::size_t, const RingTask& task, Item* item) {
    tell(task.unit);
    const UnitUpdate& update = updates_[task.unit];
    const auto part = [&](double seconds) { return seconds / static_cast<double>(update.count); };
    const auto of_items = [&](double seconds) {
      return item != nullptr ? seconds / static_cast<double>(update.items) : 0.0;
    };
    const std::uint64_t on_disk = update.moved.nvme_read + update.moved.nvme_write;
    const double work = part(clock_.seconds_for(update.touched, &Rates::memory)) +
                        of_items(clock_.checksum_seconds(on_disk));
    const Task before = separate() ? clock_.worked : clock_.join({clock_.worked, clock_.computed});
    const Task come = item != nullptr ? item->done : Schedule::none;
    clock_.worked =
        clock_.add(Kind::Update, clock_.worker(), work, {come, clock_.reduced(task.unit), before});
    Task updated = clock_.worked;
    const bool apart = clock_.two_places();
    const std::uint64_t bytes = apart ? update.state.nvme_write : update.moved.nvme_write;
    Task done = clock_.add(Kind::Update, Resource::DiskWrite,
                           of_items(clock_.seconds_for(bytes, &Rates::disk_write)), {updated});
    if (apart && item != nullptr) {
      const Task rest = clock_.write_param(Kind::Update, update.moved.nvme_write - bytes, {updated},
                                           update.items);
      done = clock_.join({done, rest});
    }
    if (separate()) {
      updated = clock_.add(Kind::Update, Resource::ToDevice,
                           part(clock_.seconds_for(update.moved.to_device, &Rates::to_device)),
                           {updated});
      done = clock_.join({done, updated});
    }
    if (item != nullptr) item->done = done;
    // A stage of forward waits for its update; backward does not, if another processor makes the
    // update.
    if (!separate() || step_under_way()) clock_.computed = clock_.join({clock_.computed, updated});
    clock_.gather(task.unit, update.bus, update.count, updated);
    written_ = clock_.join({written_, done});
    return {};
  }
  static std::size_t together_max() { return 1; }
  static Result<void> work_together(std::size_t, std::span<const RingTask>) { return {}; }

  /// For sub-groups that count as one task: what any of them needs; the same in every pass.
  void find_needs(std::uint32_t unit, std::uint64_t tasks) {
    const std::uint64_t all = plan_.sub_group_count(unit);
    const std::uint64_t each = clock_.runs() ? grain_ : all;
    needs_[unit].assign(tasks, RingNeed::Nothing);
    for (std::uint64_t index = 0; index < all; ++index) {
      RingNeed& most = needs_[unit][index / each];
      if (most == RingNeed::ToRead) continue;
      most = std::max(most, ring_need(plan_, {unit, index}, update_pass));
    }
  }
  /// Reports the unit's update, once.
  void tell(std::uint32_t unit) {
    if (std::exchange(updates_[unit].told, true)) return;
    ARTESIAN_CHECK(plan_.layout.units[unit].trainable, unit);
    StepEvent event{.kind = Kind::Update, .unit = unit};
    event.under_backward = under_backward();
    event.moved = update_moves(plan_, unit, hooks_.live(unit));
    const bool tried = speculative() && order().is_ahead(unit);
    if (tried) event.moved.optimizer += saved_moves(plan_, unit);
    hooks_.done(event);
    know(unit, event.moved);
  }
  /// Records the bytes that a whole unit's update moves.
  void know(std::uint32_t unit, const MovedByKind& moved) {
    const UnitPlacement& place = plan_.units[unit];
    const std::uint64_t slot = plan_.layout.units[unit].share * dtype_size(place.computed);
    const bool fills = place.gather == Route::Memory || place.gather == Route::Disk;
    UnitUpdate& update = updates_[unit];
    // was already read by the measuring pass
    const MovedByKind measured = measure_moves(plan_, unit);
    update.moved = moved.total();
    update.moved.nvme_read -= measured.total().nvme_read;
    update.state = moved.optimizer;
    update.state.nvme_read -= measured.optimizer.nvme_read;
    update.bus = moved.param.bus;
    update.touched = clock_.update_bytes(unit) + (fills ? slot : 0);
  }

  const Placement& plan_;
  StepClock& clock_;
  const DryUpdateHooks hooks_;
  const std::uint64_t grain_;                 // sub-groups that count as one
  std::vector<UnitUpdate> updates_;           // one for each unit
  std::vector<std::vector<RingNeed>> needs_;  // what each task of a unit needs in the ring
  std::vector<Item> own_;
  std::list<Item> lent_;
  std::uint64_t lendable_ = 0;  // items that may be borrowed at once
  std::size_t stage_ = 0;
  Ring ring_;
  std::vector<RingTask> done_;        // tasks that an abandoned pass had completed
  Task not_before_ = Schedule::none;  // what the pass's reads wait for
  Task read_ = Schedule::none;        // the last read
  Task written_ = Schedule::none;     // the last write
};

}  // namespace artesian::zero3
