// RingOrder: the order in which the sub-groups of a pass go through a ring of buffers: which is
// read next, which is worked on, when its buffer is free again; when the pass waits, borrows
// memory, or does a sub-group out of turn. It moves nothing: a Port does, step/sub_group_stream.h
// over real buffers, plan/step_time.cpp over times at which a disk would be done.
//
// Note [Out of turn]: a sub-group that is in memory takes the cores' time and none of the disk's.
// As long as the first of a pass are such ones, the ring is full of what comes behind them, and the
// disk rests. So where the caller allows it, what has come is done before them: it is written,
// and the next is read. Each sub-group is done once, whatever the order, so bits and bytes stay.
//
// Note [Together]: to fork and to join the team takes as long as one sub-group takes many cores, or
// longer where idle threads sleep. So sub-groups in memory, which no transfer keeps apart, are done
// several in one region; but one by one while something is in flight, since what has come, or is
// written, is looked at between two regions alone.
//
// Note [Borrowed items]: how far a pass reads ahead is bounded by the ring. Under backward the disk
// would then rest, while memory that activations have left stands empty until the next forward.
// Items in such memory are read into as into the ring's own, by the same pass in the same order;
// each goes back as soon as its sub-group is written, which is while forward begins. Nothing is
// read that would not be read, so bytes stay as they are.
//
// A Port has (Item is a buffer; the order holds pointers to them):
//
//   std::uint32_t count() const;  Item& own(std::uint32_t index);   the ring's own items
//   bool borrowed(const Item&) const;
//   bool is_free(const Item&) const;   it can be taken without waiting for what it last did
//   bool is_idle(const Item&) const;   nothing of it is in flight
//   Result<void> finish(Item&);        waits for that. Errors: of what was in flight
//   Item* borrow();                    null: there is nothing to borrow; and whether there is:
//   bool may_borrow() const;
//   void give_back(Item&);             a borrowed one
//   bool computes_elsewhere() const;   the model computes on a separate device
//   bool writes() const;               a task that has an item leaves something to write in it
//   RingNeed need(const RingTask&) const;
//   Result<void> read(const RingTask&, Item&);                    starts that
//   Result<void> work(std::size_t place, const RingTask&, Item*); and starts to write
//   std::size_t together_max() const;                             tasks; 1: none are
//   Result<void> work_together(std::size_t first, std::span<const RingTask>);
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

/// A sub-group: of a unit, the one with that index.
struct RingTask {
  std::uint32_t unit = 0;
  std::uint64_t index = 0;
  bool operator==(const RingTask&) const = default;
};

enum class RingNeed : std::uint8_t { Nothing, ToWrite, ToRead };  // to read, and maybe to write

template <typename Port>
class RingOrder {
 public:
  using Item = typename Port::Item;

  /// The port must outlive it.
  explicit RingOrder(Port& port) noexcept : port_(port) {}

  /// From here to the end of the pass: sub-groups of units that `may` holds of are done out of
  /// turn, before sub-groups in memory: Note [Out of turn].
  void allow_out_of_turn(std::function<bool(std::uint32_t unit)> may) noexcept {
    out_of_turn_ = std::move(may);
  }
  /// Begins a pass over these tasks, of units below `units`: starts its first reads. An error, here
  /// or below, ends the pass. Errors: the port's.
  Result<void> begin(std::vector<RingTask> tasks, std::size_t units);
  bool under_way() const noexcept { return current_ < tasks_.size(); }
  /// The place after the last task of a unit; 0: it has none.
  std::size_t end_of(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < unit_end_.size(), unit, unit_end_.size());
    return unit_end_[unit];
  }
  /// Goes on until all tasks before that place are done, and starts as many more reads as it can
  /// without waiting. Errors: the port's.
  Result<void> advance_to(std::size_t end);
  /// The same for the tasks of a unit, and those before them.
  Result<void> advance_past(std::uint32_t unit) { return advance_to(end_of(unit)); }
  /// Goes on with the tasks of a unit, and those before them, as far as their transfers are
  /// complete. Returns whether they are done. Errors: the port's.
  Result<bool> advance_within(std::uint32_t unit);
  /// True if that would do anything now.
  bool may_advance() const noexcept { return worthwhile() || may_read_on(); }
  /// Starts as many more reads as it can without waiting. Errors: the port's.
  Result<void> read_on() { return advance_to(current_); }
  /// True if that would do anything now.
  bool may_read_on() const noexcept {
    return under_way() && issued_ < tasks_.size() && (may_look_ahead() || may_borrow());
  }
  /// The rest of the pass. Errors: the port's.
  Result<void> finish() { return advance_to(tasks_.size()); }
  /// Ends a pass that is done in turn where it is: waits for what it reads, and forgets it. Returns
  /// the tasks that were done. Errors: the port's.
  Result<std::vector<RingTask>> abandon();

  /// Gives back what is borrowed and has nothing in flight. Errors: those of its writes.
  Result<void> give_back_borrowed();
  /// True if that would do anything now.
  bool may_give_back() const noexcept {
    return std::any_of(free_items_.begin(), free_items_.end(), [&](const FreeItem& free) {
      return port_.borrowed(*free.item) && port_.is_idle(*free.item);
    });
  }
  /// Waits for what passes have left in flight, what is oldest first: a write that failed is why
  /// later ones of its file did. Errors: the first one's.
  Result<void> finish_left();

 private:
  struct FreeItem {
    Item* item;
    std::optional<RingTask> wrote{};  // may be in flight
    std::optional<Error> failed{};    // what came of it, once known
  };

  std::size_t writer_of(const RingTask& task) const noexcept;
  std::size_t free_item() const noexcept;
  Result<Item*> take_item(const RingTask& task);
  std::uint32_t own_free_items() const noexcept;
  bool may_look_ahead() const noexcept;
  bool may_borrow() const noexcept;
  Result<void> read_ahead(bool wait);
  std::size_t next_task() const noexcept;
  bool in_flight() const noexcept;
  std::size_t together_up_to(std::size_t end) const noexcept;
  bool ready() const noexcept;
  bool worthwhile() const noexcept;
  Result<void> run_next(std::size_t end);
  Result<void> run_together(std::size_t end);
  Result<void> run_task(std::size_t place);

  Port& port_;
  // State of the pass under way:
  std::vector<RingTask> tasks_;
  std::vector<RingNeed> needs_;        // by task
  std::vector<std::size_t> unit_end_;  // by unit, the place after its last task; 0: no task
  std::vector<Item*> items_;           // by task, or null; of one that is done, null
  std::vector<bool> ran_;              // by task: it is done
  std::function<bool(std::uint32_t)> out_of_turn_;  // may be null
  std::size_t current_ = 0;                         // the first task that is not done
  std::size_t issued_ = 0;                          // tasks of which all reads have been started
  std::uint32_t writers_waiting_ = 0;  // of these, those that will take an item to write
  std::vector<FreeItem> free_items_;   // not of a task; the first was given back first
};

/// The place of the free item from which the sub-group was last written, if any: it is neither read
/// nor written again before that is done.
template <typename Port>
std::size_t RingOrder<Port>::writer_of(const RingTask& task) const noexcept {
  const auto writer = std::find_if(free_items_.begin(), free_items_.end(),
                                   [&](const FreeItem& free) { return free.wrote == task; });
  return static_cast<std::size_t>(writer - free_items_.begin());
}

/// The place of the first free item that needs no waiting, if any.
template <typename Port>
std::size_t RingOrder<Port>::free_item() const noexcept {
  const auto idle = std::find_if(free_items_.begin(), free_items_.end(),
                                 [&](const FreeItem& free) { return port_.is_free(*free.item); });
  return static_cast<std::size_t>(idle - free_items_.begin());
}

/// A free item with its transfers of last time finished: the one that has written the sub-group, or
/// one that needs no waiting, or else the one that was given back first.
template <typename Port>
Result<typename Port::Item*> RingOrder<Port>::take_item(const RingTask& task) {
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
template <typename Port>
std::uint32_t RingOrder<Port>::own_free_items() const noexcept {
  const auto own = std::count_if(free_items_.begin(), free_items_.end(),
                                 [&](const FreeItem& free) { return !port_.borrowed(*free.item); });
  return static_cast<std::uint32_t>(own);
}

/// Without waiting, and with an item left for tasks before it that only write: these take theirs
/// when they come, so that they hold none from reading ahead.
template <typename Port>
bool RingOrder<Port>::may_look_ahead() const noexcept {
  ARTESIAN_CHECK(issued_ < tasks_.size(), issued_, tasks_.size());
  if (own_free_items() <= (writers_waiting_ != 0 ? 1u : 0u)) return false;
  const std::size_t writer = writer_of(tasks_[issued_]);
  if (writer < free_items_.size()) return port_.is_free(*free_items_[writer].item);
  return free_item() < free_items_.size();
}

/// True if the next task may be read to borrowed memory: nothing of it is being written.
template <typename Port>
bool RingOrder<Port>::may_borrow() const noexcept {
  return port_.may_borrow() && writer_of(tasks_[issued_]) == free_items_.size();
}

template <typename Port>
Result<void> RingOrder<Port>::give_back_borrowed() {
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

template <typename Port>
Result<void> RingOrder<Port>::begin(std::vector<RingTask> tasks, std::size_t units) {
  ARTESIAN_CHECK(!under_way(), current_, tasks_.size());
  tasks_ = std::move(tasks);
  needs_.clear();
  unit_end_.assign(units, 0);
  for (std::size_t place = 0; place < tasks_.size(); ++place) {
    ARTESIAN_CHECK(tasks_[place].unit < units, tasks_[place].unit);
    unit_end_[tasks_[place].unit] = place + 1;
    needs_.push_back(port_.need(tasks_[place]));
  }
  items_.assign(tasks_.size(), nullptr);
  ran_.assign(tasks_.size(), false);
  out_of_turn_ = nullptr;
  writers_waiting_ = 0;
  current_ = issued_ = tasks_.size();  // no pass, if this fails
  ARTESIAN_TRY_VOID(give_back_borrowed());
  current_ = issued_ = 0;
  if (own_free_items() != port_.count()) {  // else in the order in which they were given back
    free_items_.clear();
    for (std::uint32_t index = 0; index < port_.count(); ++index) {
      free_items_.push_back({&port_.own(index)});
    }
  }
  return advance_to(0);
}

/// Starts reads as long as none has to wait, or only the current task's.
template <typename Port>
Result<void> RingOrder<Port>::read_ahead(bool wait) {
  ARTESIAN_TRY_VOID(give_back_borrowed());
  for (; issued_ < tasks_.size(); ++issued_) {
    const RingTask& task = tasks_[issued_];
    ARTESIAN_CHECK(items_[issued_] == nullptr && !ran_[issued_], issued_);
    if (needs_[issued_] == RingNeed::ToRead) {
      const bool free = may_look_ahead();
      Item* item = !free && may_borrow() ? port_.borrow() : nullptr;
      if (item == nullptr) {
        const bool may_wait = wait && issued_ == current_;
        if (!free && !may_wait) return {};
        ARTESIAN_TRY(taken, take_item(task));
        item = taken;
      }
      items_[issued_] = item;
      ARTESIAN_TRY_VOID(port_.read(task, *item));
    } else if (needs_[issued_] == RingNeed::ToWrite) {
      ++writers_waiting_;
    }
  }
  return {};
}

/// The first that is not done; or if that is in memory, the first that has come and may go before.
template <typename Port>
std::size_t RingOrder<Port>::next_task() const noexcept {
  if (!out_of_turn_ || needs_[current_] != RingNeed::Nothing) return current_;
  for (std::size_t place = current_ + 1; place < issued_; ++place) {
    const bool come = items_[place] != nullptr && port_.is_idle(*items_[place]);
    if (come && out_of_turn_(tasks_[place].unit)) return place;
  }
  return current_;
}

/// True if an item of the ring is being read, written or copied.
template <typename Port>
bool RingOrder<Port>::in_flight() const noexcept {
  const auto moves = [&](const Item* item) { return item != nullptr && !port_.is_idle(*item); };
  return std::any_of(free_items_.begin(), free_items_.end(),
                     [&](const FreeItem& free) { return moves(free.item); }) ||
         std::any_of(items_.begin() + static_cast<std::ptrdiff_t>(current_),
                     items_.begin() + static_cast<std::ptrdiff_t>(issued_), moves);
}

/// The place after the last of the sub-groups from the current one on, below `end`, that one region
/// does: Note [Together].
template <typename Port>
std::size_t RingOrder<Port>::together_up_to(std::size_t end) const noexcept {
  std::size_t last = current_;
  const std::size_t together = port_.together_max();
  if (together < 2 || needs_[current_] != RingNeed::Nothing || in_flight()) return last;
  end = std::min({end, issued_, current_ + together});
  while (last < end && !ran_[last] && needs_[last] == RingNeed::Nothing) ++last;
  return last;
}

template <typename Port>
Result<void> RingOrder<Port>::run_together(std::size_t end) {
  const std::size_t count = end - current_;
  ARTESIAN_TRY_VOID(port_.work_together(current_, std::span(tasks_).subspan(current_, count)));
  for (std::size_t place = current_; place < end; ++place) ran_[place] = true;
  return {};
}

/// Goes on by one sub-group, or by several that are done together, none of them at `end` or behind.
template <typename Port>
Result<void> RingOrder<Port>::run_next(std::size_t end) {
  ARTESIAN_TRY_VOID(read_ahead(/*wait=*/true));
  const std::size_t next = next_task();
  ARTESIAN_CHECK(current_ <= next && next < issued_, current_, next, issued_);
  const std::size_t last = next == current_ ? together_up_to(end) : next;
  ARTESIAN_TRY_VOID(last > next + 1 ? run_together(last) : run_task(next));
  while (under_way() && ran_[current_]) ++current_;
  return {};
}

template <typename Port>
Result<void> RingOrder<Port>::run_task(std::size_t place) {
  const RingTask& task = tasks_[place];
  if (needs_[place] == RingNeed::ToWrite) {
    ARTESIAN_CHECK(items_[place] == nullptr, place);
    ARTESIAN_TRY(item, take_item(task));
    items_[place] = item;
    ARTESIAN_CHECK(writers_waiting_ != 0);
    --writers_waiting_;
  }
  ARTESIAN_TRY_VOID(port_.work(place, task, items_[place]));
  ARTESIAN_CHECK(!ran_[place], place);
  ran_[place] = true;
  Item* const item = std::exchange(items_[place], nullptr);
  if (item == nullptr) return {};
  free_items_.push_back({item, port_.writes() ? std::optional(task) : std::nullopt});
  return {};
}

template <typename Port>
Result<void> RingOrder<Port>::advance_to(std::size_t end) {
  ARTESIAN_CHECK(end <= tasks_.size(), end, tasks_.size());
  Result<void> outcome;
  while (outcome.has_value() && current_ < end) outcome = run_next(end);
  if (outcome.has_value()) outcome = read_ahead(/*wait=*/false);
  if (!outcome.has_value()) current_ = issued_ = tasks_.size();
  return outcome;
}

/// True if the next task has all that it needs.
template <typename Port>
bool RingOrder<Port>::ready() const noexcept {
  if (!under_way()) return false;
  switch (needs_[current_]) {
    case RingNeed::Nothing: return true;
    case RingNeed::ToRead: return current_ < issued_ && port_.is_idle(*items_[current_]);
    case RingNeed::ToWrite: break;
  }
  return free_item() < free_items_.size();
}

/// True if enough is ready to go on: half of the ring, as the disk does better with some reads in a
/// row, then some writes. Beside a separate device a task that reads nothing does not wait for
/// that, nor does one when all reads that were started are complete: where few tasks read, half of
/// the ring would never come.
template <typename Port>
bool RingOrder<Port>::worthwhile() const noexcept {
  if (port_.computes_elsewhere() && under_way() && needs_[current_] != RingNeed::ToRead) {
    return ready();
  }
  std::uint32_t come = 0;
  std::uint32_t reads = 0;
  for (std::size_t place = current_; place < issued_; ++place) {
    if (items_[place] == nullptr) continue;
    ++reads;
    come += port_.is_idle(*items_[place]) ? 1 : 0;
  }
  if (port_.computes_elsewhere() && come == reads) return ready();  // no more will come
  return 2 * come >= port_.count() && ready();
}

template <typename Port>
Result<bool> RingOrder<Port>::advance_within(std::uint32_t unit) {
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

template <typename Port>
Result<std::vector<RingTask>> RingOrder<Port>::abandon() {
  ARTESIAN_CHECK(!out_of_turn_);  // the first ones are done, and no others
  Result<void> first;
  for (std::size_t place = current_; place < issued_; ++place) {
    if (items_[place] == nullptr) continue;
    auto outcome = port_.finish(*items_[place]);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    free_items_.push_back({items_[place]});
  }
  std::vector<RingTask> done = std::move(tasks_);
  done.resize(std::exchange(current_, 0));
  tasks_.clear();
  issued_ = 0;
  auto given_back = give_back_borrowed();
  if (first.has_value()) first = std::move(given_back);
  if (!first.has_value()) return std::move(first).error();
  return done;
}

template <typename Port>
Result<void> RingOrder<Port>::finish_left() {
  Result<void> first;
  for (const FreeItem& free : free_items_) {
    auto outcome = free.failed.has_value() ? Result<void>(*free.failed) : port_.finish(*free.item);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
  }
  return first;
}

}  // namespace artesian::tiering
