// RingOrder: the order in which the sub-groups of a pass go through a ring of buffers: which is
// read next, which is worked on, when its buffer is free again, and when the pass waits, borrows
// memory, or does a sub-group out of turn. It moves no bytes; its Port does:
// step/sub_group_stream.h with real buffers, plan/dry_update.h with simulated disk times.
//
// Note [Out of turn]: a sub-group in memory needs CPU time but no disk time. If a pass begins with
// such sub-groups, the ring fills with reads of later ones, and the disk idles. So if the caller
// allows it, sub-groups whose reads are complete are done before them; this frees their buffers for
// further reads. Each sub-group is done once in any order, so results and transferred bytes do not
// change.
//
// Note [Together]: forking and joining the thread pool takes as long as many cores take for one
// sub-group, or longer if idle threads sleep. So several sub-groups in memory are done in one
// parallel region. While transfers are in flight, they are done one by one, since finished
// transfers are noticed only between regions.
//
// Note [Borrowed items]: the ring bounds how far a pass reads ahead. Under backward the disk would
// then idle, although memory freed by activations is empty until the next forward. The pass uses
// items in such memory like the ring's own, in the same order. Each is returned as soon as its
// sub-group is written, while forward begins. The transferred bytes stay the same.
//
// A Port has (Item is a buffer; the order holds pointers to them):
//
//   std::uint32_t count() const;  Item& own(std::uint32_t index);   the ring's own items
//   bool borrowed(const Item&) const;
//   bool is_free(const Item&) const;   it can be taken without waiting for its last transfers
//   bool is_idle(const Item&) const;   it has nothing in flight
//   Result<void> finish(Item&);        waits until idle. Errors: of its transfers
//   Item* borrow();                    null: nothing to borrow
//   bool may_borrow() const;
//   void give_back(Item&);             a borrowed one
//   bool computes_elsewhere() const;   the model computes on a separate device
//   bool writes() const;               tasks write the content of their items
//   RingNeed need(const RingTask&) const;
//   Result<void> read(const RingTask&, Item&);                    starts the reads
//   Result<void> work(std::size_t place, const RingTask&, Item*); and starts to write
//   std::size_t together_max() const;                             most tasks in one region
//   Result<void> work_together(std::size_t first, std::span<const RingTask>);
//
// Note [Open passes]: a pass may be given more tasks while it is under way, and have some of them
// cancelled or done first. Callers name tasks only by their unit. An error of such a call leaves
// the pass unchanged: a transfer that a hung disk has not ended may be waited for again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace artesian::tiering {

/// A sub-group: a unit and an index within it.
struct RingTask {
  std::uint32_t unit = 0;
  std::uint64_t index = 0;
  bool operator==(const RingTask&) const = default;
};

enum class RingNeed : std::uint8_t {
  Nothing,
  ToWrite,
  ToRead
};  // whether and why a task needs an item

template <typename Port, typename Item = typename Port::Item>
class RingOrder {
 public:
  /// The port must outlive it.
  explicit RingOrder(Port& port) noexcept : port_(port) {}

  /// Until the end of the pass, sub-groups of units for which `may` is true may be done before
  /// preceding sub-groups in memory: Note [Out of turn].
  void allow_out_of_turn(std::function<bool(std::uint32_t unit)> may) noexcept {
    out_of_turn_ = std::move(may);
  }
  /// Begins a pass over these tasks: starts its first reads. An error, of this function or those
  /// below, ends the pass. Errors: the port's.
  Result<void> begin(std::span<const RingTask> tasks);
  bool under_way() const noexcept { return current_ < places_.size(); }
  /// The place after the last task of a unit; 0 if it has none.
  std::size_t end_of(std::uint32_t unit) const noexcept {
    return unit < unit_end_.size() ? unit_end_[unit] : 0;
  }
  /// Works until all tasks before `end` are done, and starts as many more reads as it can without
  /// waiting. Errors: the port's.
  Result<void> advance_to(std::size_t end);
  /// As advance_to, for all tasks up to the last one of a unit.
  Result<void> advance_past(std::uint32_t unit) { return advance_to(end_of(unit)); }
  /// Works on the tasks of a unit, and those before them, as far as their transfers are complete.
  /// Returns whether all are done. Errors: the port's.
  Result<bool> advance_within(std::uint32_t unit);
  /// True if advance_within() would do anything now.
  bool may_advance() const noexcept { return worthwhile() || may_read_on(); }
  /// Starts as many more reads as it can without waiting. Errors: the port's.
  Result<void> read_on() { return advance_to(current_); }
  /// True if read_on() would do anything now.
  bool may_read_on() const noexcept {
    return under_way() && issued_ < places_.size() && (may_look_ahead() || may_borrow());
  }
  /// Does the rest of the pass. Errors: the port's.
  Result<void> finish() { return advance_to(places_.size()); }
  /// Works until all reads have been started. Errors: the port's.
  Result<void> start_all();
  /// Ends a pass early: waits for its reads and discards them. Returns the tasks that were done;
  /// only for passes without work out of turn. Errors: the port's.
  Result<std::vector<RingTask>> abandon();

  /// Adds tasks to the pass, or begins one: Note [Open passes]. Errors: the port's.
  Result<void> append(std::span<const RingTask> tasks);
  /// The unit of the first task that is not done. Only while a pass is under way.
  std::uint32_t next_unit() const noexcept {
    ARTESIAN_CHECK(under_way(), current_, places_.size());
    return places_[current_].task.unit;
  }
  /// Works on all tasks whose reads are complete, in any order, and starts reads; does not wait.
  /// Errors: the port's.
  Result<void> advance_come();
  /// Does one task, of this unit if it is being read or an item is free for it. Errors: the
  /// port's.
  Result<void> demand(std::uint32_t unit);
  /// Cancels a unit's tasks, after waiting for their reads. Errors: those of the transfers that it
  /// waits for; the call may be repeated.
  Result<void> forget(std::uint32_t unit);

  /// Returns borrowed items that have nothing in flight. Errors: those of their writes.
  Result<void> give_back_borrowed();
  /// True if give_back_borrowed() would do anything now.
  bool may_give_back() const noexcept {
    return std::any_of(free_items_.begin(), free_items_.end(), [&](const FreeItem& free) {
      return port_.borrowed(*free.item) && port_.is_idle(*free.item);
    });
  }
  /// Waits for transfers that earlier passes left in flight, oldest first, since after a failed
  /// write all later writes of its file fail. Errors: the first one's.
  Result<void> finish_left();

 private:
  struct FreeItem {
    Item* item;
    std::optional<RingTask>
        wrote{};  // the sub-group last written from it; the write may be in flight
    std::optional<Error> failed{};  // the item's error, once a transfer of it has failed
  };

  struct Place {
    RingTask task{};
    RingNeed need = RingNeed::Nothing;
    bool ran = false;      // the task is done
    Item* item = nullptr;  // null if the task needs none or is done
  };
  static constexpr std::size_t none = ~std::size_t{0};

  std::size_t writer_of(const RingTask& task) const noexcept;
  std::size_t free_item() const noexcept;
  Result<Item*> take_item(const RingTask& task);
  std::uint32_t own_free_items() const noexcept;
  bool may_look_ahead() const noexcept;
  bool may_borrow() const noexcept;
  Result<void> begin_empty();
  void add(std::span<const RingTask> tasks);
  void list_ends() noexcept;
  Result<void> read_ahead(std::size_t may_wait_for);
  std::size_t next_task() const noexcept;
  bool in_flight() const noexcept;
  std::size_t together_up_to(std::size_t end) const noexcept;
  bool ready() const noexcept;
  bool worthwhile() const noexcept;
  Result<void> run_next(std::size_t end);
  Result<void> run_together(std::size_t end);
  Result<void> run_task(std::size_t place);
  void skip_done() noexcept;
  Result<void> end_if_failed(Result<void> outcome) noexcept;

  Port& port_;
  // State of the pass that is under way:
  std::vector<Place> places_;
  std::vector<std::size_t> unit_end_;               // by unit, see end_of
  std::vector<RingTask> together_;                  // tasks of one parallel region
  std::function<bool(std::uint32_t)> out_of_turn_;  // may be null
  std::size_t current_ = 0;                         // the first place that is not done
  std::size_t issued_ = 0;                          // places of which all reads have been started
  std::uint32_t writers_waiting_ = 0;               // waiting tasks that will take an item to write
  std::vector<FreeItem>
      free_items_;  // items that belong to no task; in the order in which they were returned
};

/// The place of the free item from which this sub-group was last written, if any. Until that write
/// has ended, the sub-group must not be read or written again.
template <typename Port, typename Item>
std::size_t RingOrder<Port, Item>::writer_of(const RingTask& task) const noexcept {
  const auto writer = std::find_if(free_items_.begin(), free_items_.end(),
                                   [&](const FreeItem& free) { return free.wrote == task; });
  return static_cast<std::size_t>(writer - free_items_.begin());
}

/// The place of the first free item that can be taken without waiting, if any.
template <typename Port, typename Item>
std::size_t RingOrder<Port, Item>::free_item() const noexcept {
  const auto idle = std::find_if(free_items_.begin(), free_items_.end(),
                                 [&](const FreeItem& free) { return port_.is_free(*free.item); });
  return static_cast<std::size_t>(idle - free_items_.begin());
}

/// Takes a free item and finishes its last transfers: the item that has written this sub-group,
/// else one that needs no waiting, else the one returned first.
template <typename Port, typename Item>
Result<Item*> RingOrder<Port, Item>::take_item(const RingTask& task) {
  ARTESIAN_CHECK(!free_items_.empty());
  std::size_t chosen = writer_of(task);
  if (chosen == free_items_.size()) chosen = free_item();
  if (chosen == free_items_.size()) chosen = 0;
  FreeItem& free = free_items_[chosen];
  auto finished = port_.finish(*free.item);
  if (!finished.has_value()) {
    free.failed = finished.error();
    return std::move(finished).error();
  }
  Item* item = free.item;
  free_items_.erase(free_items_.begin() + static_cast<std::ptrdiff_t>(chosen));
  return item;
}

/// Free items that are not borrowed.
template <typename Port, typename Item>
std::uint32_t RingOrder<Port, Item>::own_free_items() const noexcept {
  const auto own = std::count_if(free_items_.begin(), free_items_.end(),
                                 [&](const FreeItem& free) { return !port_.borrowed(*free.item); });
  return static_cast<std::uint32_t>(own);
}

/// Starts a read only if it needs no waiting, and only if an item is left for earlier tasks that
/// only write, which take their items later.
template <typename Port, typename Item>
bool RingOrder<Port, Item>::may_look_ahead() const noexcept {
  ARTESIAN_CHECK(issued_ < places_.size(), issued_, places_.size());
  if (own_free_items() <= (writers_waiting_ != 0 ? 1u : 0u)) return false;
  const std::size_t writer = writer_of(places_[issued_].task);
  if (writer < free_items_.size()) return port_.is_free(*free_items_[writer].item);
  return free_item() < free_items_.size();
}

/// True if the next task may be read into borrowed memory: its sub-group is not being written.
template <typename Port, typename Item>
bool RingOrder<Port, Item>::may_borrow() const noexcept {
  return port_.may_borrow() && writer_of(places_[issued_].task) == free_items_.size();
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::give_back_borrowed() {
  Result<void> first;
  for (std::size_t place = 0; place < free_items_.size();) {
    Item& item = *free_items_[place].item;
    if (!port_.borrowed(item) || !port_.is_idle(item)) {
      ++place;
      continue;
    }
    auto outcome = port_.finish(item);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    free_items_.erase(free_items_.begin() + static_cast<std::ptrdiff_t>(place));
    port_.give_back(item);
  }
  return first;
}

/// Resets to no tasks, with all items of the ring free.
template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::begin_empty() {
  ARTESIAN_CHECK(!under_way(), current_, places_.size());
  places_.clear();
  list_ends();
  out_of_turn_ = nullptr;
  writers_waiting_ = 0;
  current_ = issued_ = 0;
  ARTESIAN_TRY_VOID(give_back_borrowed());
  if (own_free_items() == port_.count()) return {};  // in the order in which they were returned
  free_items_.clear();
  for (std::uint32_t index = 0; index < port_.count(); ++index) {
    free_items_.push_back({&port_.own(index)});
  }
  return {};
}

template <typename Port, typename Item>
void RingOrder<Port, Item>::list_ends() noexcept {
  std::fill(unit_end_.begin(), unit_end_.end(), 0);
  for (std::size_t place = 0; place < places_.size(); ++place) {
    unit_end_[places_[place].task.unit] = place + 1;
  }
}

template <typename Port, typename Item>
void RingOrder<Port, Item>::add(std::span<const RingTask> tasks) {
  places_.reserve(places_.size() + tasks.size());
  for (const RingTask& task : tasks) {
    places_.push_back({.task = task, .need = port_.need(task)});
    if (task.unit >= unit_end_.size()) unit_end_.resize(task.unit + 1, 0);
    unit_end_[task.unit] = places_.size();
  }
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::begin(std::span<const RingTask> tasks) {
  ARTESIAN_TRY_VOID(begin_empty());
  add(tasks);
  return advance_to(0);
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::append(std::span<const RingTask> tasks) {
  if (!under_way()) {
    ARTESIAN_TRY_VOID(begin_empty());
  } else {  // an open pass may never end, so finished tasks are removed
    places_.erase(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(current_));
    issued_ -= std::exchange(current_, 0);
    list_ends();
  }
  add(tasks);
  return read_ahead(none);
}

/// Starts reads as long as none has to wait, except that `only` may wait.
template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::read_ahead(std::size_t may_wait_for) {
  ARTESIAN_TRY_VOID(give_back_borrowed());
  for (; issued_ < places_.size(); ++issued_) {
    Place& place = places_[issued_];
    ARTESIAN_CHECK(place.item == nullptr && !place.ran, issued_);
    if (place.need == RingNeed::ToRead) {
      const bool free = may_look_ahead();
      Item* item = !free && may_borrow() ? port_.borrow() : nullptr;
      if (item == nullptr) {
        if (!free && issued_ != may_wait_for) return {};
        ARTESIAN_TRY(taken, take_item(place.task));
        item = taken;
      }
      place.item = item;
      ARTESIAN_TRY_VOID(port_.read(place.task, *item));
    } else if (place.need == RingNeed::ToWrite) {
      ++writers_waiting_;
    }
  }
  return {};
}

/// The first task that is not done; if it is in memory, the first with a complete read.
template <typename Port, typename Item>
std::size_t RingOrder<Port, Item>::next_task() const noexcept {
  if (!out_of_turn_ || places_[current_].need != RingNeed::Nothing) return current_;
  for (std::size_t next = current_ + 1; next < issued_; ++next) {
    const Place& place = places_[next];
    const bool come = place.item != nullptr && port_.is_idle(*place.item);
    if (come && out_of_turn_(place.task.unit)) return next;
  }
  return current_;
}

/// True if an item of the ring is being read, written or copied.
template <typename Port, typename Item>
bool RingOrder<Port, Item>::in_flight() const noexcept {
  const auto moves = [&](const auto& held) {
    return held.item != nullptr && !port_.is_idle(*held.item);
  };
  const auto begin = places_.begin();
  return std::any_of(free_items_.begin(), free_items_.end(), moves) ||
         std::any_of(begin + static_cast<std::ptrdiff_t>(current_),
                     begin + static_cast<std::ptrdiff_t>(issued_), moves);
}

/// The end of the sub-groups, from the current one on and below `end`, that go into one region:
/// Note [Together].
template <typename Port, typename Item>
std::size_t RingOrder<Port, Item>::together_up_to(std::size_t end) const noexcept {
  std::size_t last = current_;
  const std::size_t together = port_.together_max();
  if (together < 2 || places_[current_].need != RingNeed::Nothing || in_flight()) return last;
  end = std::min({end, issued_, current_ + together});
  while (last < end && !places_[last].ran && places_[last].need == RingNeed::Nothing) ++last;
  return last;
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::run_together(std::size_t end) {
  together_.clear();
  for (std::size_t place = current_; place < end; ++place) together_.push_back(places_[place].task);
  ARTESIAN_TRY_VOID(port_.work_together(current_, together_));
  for (std::size_t place = current_; place < end; ++place) places_[place].ran = true;
  return {};
}

/// Does one sub-group, or several together, all of them before `end`.
template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::run_next(std::size_t end) {
  ARTESIAN_TRY_VOID(read_ahead(current_));
  const std::size_t next = next_task();
  ARTESIAN_CHECK(current_ <= next && next < issued_, current_, next, issued_);
  const std::size_t last = next == current_ ? together_up_to(end) : next;
  ARTESIAN_TRY_VOID(last > next + 1 ? run_together(last) : run_task(next));
  skip_done();
  return {};
}

template <typename Port, typename Item>
void RingOrder<Port, Item>::skip_done() noexcept {
  while (under_way() && places_[current_].ran) ++current_;
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::run_task(std::size_t index) {
  Place& place = places_[index];
  if (place.need == RingNeed::ToWrite) {
    ARTESIAN_CHECK(place.item == nullptr, index);
    ARTESIAN_TRY(item, take_item(place.task));
    place.item = item;
    ARTESIAN_CHECK(writers_waiting_ != 0);
    --writers_waiting_;
  }
  ARTESIAN_TRY_VOID(port_.work(index, place.task, place.item));
  ARTESIAN_CHECK(!place.ran, index);
  place.ran = true;
  Item* const item = std::exchange(place.item, nullptr);
  if (item == nullptr) return {};
  free_items_.push_back({item, port_.writes() ? std::optional(place.task) : std::nullopt});
  return {};
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::end_if_failed(Result<void> outcome) noexcept {
  if (!outcome.has_value()) current_ = issued_ = places_.size();
  return outcome;
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::advance_to(std::size_t end) {
  ARTESIAN_CHECK(end <= places_.size(), end, places_.size());
  Result<void> outcome;
  while (outcome.has_value() && current_ < end) outcome = run_next(end);
  if (outcome.has_value()) outcome = read_ahead(none);
  return end_if_failed(std::move(outcome));
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::start_all() {
  Result<void> outcome;
  while (outcome.has_value() && issued_ < places_.size()) outcome = run_next(places_.size());
  return end_if_failed(std::move(outcome));
}

/// True if the next task can be done without waiting.
template <typename Port, typename Item>
bool RingOrder<Port, Item>::ready() const noexcept {
  if (!under_way()) return false;
  const Place& place = places_[current_];
  switch (place.need) {
    case RingNeed::Nothing: return true;
    case RingNeed::ToRead: return current_ < issued_ && port_.is_idle(*place.item);
    case RingNeed::ToWrite: break;
  }
  return free_item() < free_items_.size();
}

/// True if enough tasks are ready to go on: half of the ring, as disks are faster with several
/// reads in a row, then several writes. With a separate device, a task that reads nothing does not
/// wait for that, and neither does any task when all started reads are complete: with few reads,
/// half of the ring would never be ready.
template <typename Port, typename Item>
bool RingOrder<Port, Item>::worthwhile() const noexcept {
  if (port_.computes_elsewhere() && under_way() && places_[current_].need != RingNeed::ToRead) {
    return ready();
  }
  std::uint32_t come = 0;
  std::uint32_t reads = 0;
  for (std::size_t place = current_; place < issued_; ++place) {
    const Item* const item = places_[place].item;
    if (item == nullptr) continue;
    ++reads;
    come += port_.is_idle(*item) ? 1 : 0;
  }
  if (port_.computes_elsewhere() && come == reads) return ready();  // no more reads will complete
  return 2 * come >= port_.count() && ready();
}

template <typename Port, typename Item>
Result<bool> RingOrder<Port, Item>::advance_within(std::uint32_t unit) {
  const std::size_t end = end_of(unit);
  if (worthwhile()) {
    while (current_ < end && ready()) {
      ARTESIAN_TRY_VOID(advance_to(std::max(current_ + 1, together_up_to(end))));
    }
  }
  const bool done = current_ >= end;
  ARTESIAN_TRY_VOID(read_on());
  return done;
}

template <typename Port, typename Item>
Result<std::vector<RingTask>> RingOrder<Port, Item>::abandon() {
  ARTESIAN_CHECK(!out_of_turn_);  // the tasks that are done are exactly the first ones
  Result<void> first;
  std::vector<RingTask> done;
  for (std::size_t place = 0; place < issued_; ++place) {
    if (place < current_) done.push_back(places_[place].task);
    Item* const item = std::exchange(places_[place].item, nullptr);
    if (item == nullptr) continue;
    auto outcome = port_.finish(*item);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    free_items_.push_back({item});
  }
  places_.clear();
  list_ends();
  current_ = issued_ = 0;
  auto given_back = give_back_borrowed();
  if (first.has_value()) first = std::move(given_back);
  if (!first.has_value()) return std::move(first).error();
  return done;
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::advance_come() {
  for (std::size_t place = current_; place < issued_; ++place) {
    const Item* const item = places_[place].item;
    if (item != nullptr && port_.is_idle(*item)) ARTESIAN_TRY_VOID(run_task(place));
  }
  skip_done();
  return read_ahead(none);
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::demand(std::uint32_t unit) {
  ARTESIAN_CHECK(under_way(), unit);
  const auto wanted = [&](const Place& place) { return place.task.unit == unit && !place.ran; };
  const auto begin = places_.begin();
  std::stable_partition(begin + static_cast<std::ptrdiff_t>(issued_), places_.end(), wanted);
  list_ends();
  ARTESIAN_TRY_VOID(read_ahead(none));
  const auto read = begin + static_cast<std::ptrdiff_t>(issued_);
  const auto found = std::find_if(begin + static_cast<std::ptrdiff_t>(current_), read, wanted);
  auto next = static_cast<std::size_t>(found - begin);
  if (found == read) {
    if (free_items_.empty()) {
      next = current_;
    } else {
      ARTESIAN_TRY_VOID(read_ahead(issued_));
    }
  }
  ARTESIAN_TRY_VOID(run_task(next));
  skip_done();
  return {};
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::forget(std::uint32_t unit) {
  std::size_t kept = current_;
  for (std::size_t index = current_; index < issued_; ++index) {
    Place& place = places_[index];
    if (place.task.unit != unit || place.item == nullptr) continue;
    auto outcome = port_.finish(*place.item);
    if (!port_.is_idle(*place.item)) return outcome;
    free_items_.push_back({std::exchange(place.item, nullptr)});
  }
  const std::size_t issued = issued_;
  for (std::size_t index = current_; index < places_.size(); ++index) {
    const Place& place = places_[index];
    if (place.task.unit != unit) {
      places_[kept++] = place;
    } else if (index < issued) {
      --issued_;
      if (place.need == RingNeed::ToWrite && !place.ran) --writers_waiting_;
    }
  }
  places_.resize(kept);
  list_ends();
  skip_done();
  return {};
}

template <typename Port, typename Item>
Result<void> RingOrder<Port, Item>::finish_left() {
  Result<void> first;
  for (const FreeItem& free : free_items_) {
    auto outcome = free.failed.has_value() ? Result<void>(*free.failed) : port_.finish(*free.item);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
  }
  return first;
}

}  // namespace artesian::tiering
