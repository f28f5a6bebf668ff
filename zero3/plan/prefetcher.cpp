#include "zero3/plan/prefetcher.h"

#include <algorithm>

#include "zero3/config/config.h"

namespace artesian::zero3 {

using tiering::SlotState;

namespace {

constexpr std::uint32_t doubted_steps = 16;  // after one in which a unit was given up

std::vector<std::uint64_t> elements_of(const Layout& layout) {
  std::vector<std::uint64_t> numel;
  for (const Unit& unit : layout.units) numel.push_back(unit.numel);
  return numel;
}

}  // namespace

PrefetchLimits PrefetchLimits::of(const ZeroConfig& zero) noexcept {
  return {zero.prefetch_bucket_size, zero.max_live_parameters, zero.max_reuse_distance};
}

Prefetcher::Prefetcher(const Layout& layout, tiering::UnitSlots& residency,
                       const PrefetchLimits& limits)
    : layout_(layout),
      residency_(residency),
      limits_(limits),
      numel_(elements_of(layout)),
      courses_{Course(numel_), Course(numel_)},
      next_uses_(numel_) {
  found_.assign(layout.units.size(), Found::Demand);
  entering_.assign(layout.units.size(), false);
  used_ = given_up_ = entering_;
  doubted_.assign(layout.units.size(), 0);
}

/// Brings next_uses_ up to date with what has become of a unit, and with the time.
void Prefetcher::follow(std::uint32_t unit) noexcept {
  if (!streamed(unit)) return;
  const bool absent = residency_.state(unit) == SlotState::Absent;
  const bool held = entering_[unit] || residency_.pinned(unit);
  const std::uint64_t ahead =
      course_->recording ? Trace::never : course_->trace.next_use(course_->position - 1, unit);
  next_uses_.set(unit,
                 absent ? Holding::Absent
                 : held ? Holding::Ignored
                        : Holding::Evictable,
                 ahead == Trace::never ? NextUses::never : now() + ahead);
}

/// After the trace was closed, proved wrong, or changed for another: all next uses are others.
void Prefetcher::follow_all() noexcept {
  next_uses_.reset(course_->recording ? 0 : course_->trace.size());
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) follow(unit);
}

/// To the beginning of the trace. From its end, no unit's next use changes by that.
void Prefetcher::to_begin() noexcept {
  const bool same = course_->position == 0 || course_->position == course_->trace.size();
  accesses_before_ += course_->position;
  course_->position = 0;
  if (!same) follow_all();
}

void Prefetcher::count_live() noexcept {
  course_->statistics.live_parameters_max =
      std::max(course_->statistics.live_parameters_max, live_);
}

void Prefetcher::reset_statistics() noexcept {
  courses_[0].statistics = {};
  courses_[0].statistics.live_parameters_max = live_;
}

Result<void> Prefetcher::gather_persistent() noexcept {
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (streamed(unit)) continue;
    ARTESIAN_TRY_VOID(residency_.start(unit, aio::Priority::Demand));
    ARTESIAN_TRY_VOID(residency_.acquire(unit));  // stays pinned for ever
    live_ += numel_[unit];
  }
  count_live();
  return {};
}

void Prefetcher::begin_evaluation() noexcept {
  ARTESIAN_CHECK(course_ == &courses_[0]);
  course_ = &courses_[1];
  course_->position = 0;
  course_->statistics = {};
  follow_all();
}

Result<void> Prefetcher::end_evaluation() noexcept {
  ARTESIAN_CHECK(course_ == &courses_[1]);
  close_recording();
  course_ = &courses_[0];
  follow_all();
  return look_ahead();
}

void Prefetcher::rewind(std::size_t position) noexcept {
  ARTESIAN_CHECK(position <= course_->position, position, course_->position);
  course_->position = position;
  if (course_->recording) course_->trace.truncate(position);
  follow_all();
}

/// The trace is known from here on: as far as the accesses have come. Returns whether that is new.
bool Prefetcher::close_recording() noexcept {
  if (course_->position == 0) return false;  // nothing ran, nothing was learned
  const bool learned = course_->recording || course_->position != course_->trace.size();
  course_->trace.truncate(course_->position);
  course_->recording = false;
  return learned;
}

Result<void> Prefetcher::drop(std::uint32_t unit) noexcept {
  if (residency_.state(unit) == SlotState::Absent) return {};
  if (course_ == &courses_[0] && !used_[unit]) given_up_[unit] = true;
  if (found_[unit] == Found::Prefetched) ahead_ -= numel_[unit];
  found_[unit] = Found::Demand;
  live_ -= numel_[unit];
  auto dropped = residency_.drop(unit);
  follow(unit);
  return dropped;
}

Result<void> Prefetcher::clear() noexcept {
  auto cleared = residency_.clear();
  follow_all();
  return cleared;
}

/// Drops the unpinned unit whose next use is farthest, if that is later than `next_use_min`
/// accesses from now. Returns whether something was dropped.
Result<bool> Prefetcher::make_room(std::uint64_t next_use_min) noexcept {
  const NextUses::Use victim = next_uses_.farthest();
  if (victim.ordinal <= now() + next_use_min) return false;
  ARTESIAN_TRY_VOID(drop(victim.unit));
  return true;
}

Result<bool> Prefetcher::start_with_room(std::uint32_t unit, aio::Priority priority,
                                         std::uint64_t next_use_min) noexcept {
  for (;;) {
    const auto started = residency_.start(unit, priority);
    if (started.has_value()) break;
    if (started.error().code != ErrorCode::Exhausted) return started.error();
    ARTESIAN_TRY(dropped, make_room(next_use_min));
    if (!dropped) return false;
  }
  live_ += numel_[unit];
  count_live();
  follow(unit);
  return true;
}

Result<void> Prefetcher::demand(const Trace::Access& units) noexcept {
  Trace::Access by_size;
  for (const auto unit : units) {
    if (streamed(unit)) by_size.push_back(unit);
  }
  for (const auto unit : by_size) {
    entering_[unit] = true;  // none makes room for another
    follow(unit);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return numel_[a] > numel_[b]; });
  for (int attempt = 0;; ++attempt) {
    bool complete = true;
    for (const auto unit : by_size) {
      if (residency_.state(unit) != SlotState::Absent) continue;
      ARTESIAN_TRY(started, start_with_room(unit, aio::Priority::Demand, 0));
      complete = complete && started;
    }
    if (complete) break;
    if (attempt == 1) {
      return make_error(ErrorCode::Exhausted,
                        "artesian.device_memory: no room for one stage's parameters");
    }
    for (const auto unit : by_size) ARTESIAN_TRY_VOID(drop(unit));  // they lay in each other's way
  }
  for (const auto unit : by_size) {
    if (found_[unit] == Found::Prefetched) ahead_ -= numel_[unit];
    std::uint64_t& counter = found_[unit] == Found::Demand       ? course_->statistics.demand
                             : found_[unit] == Found::Prefetched ? course_->statistics.prefetched
                                                                 : course_->statistics.reused;
    counter += numel_[unit];
    found_[unit] = Found::Reused;
    ARTESIAN_TRY_VOID(residency_.acquire(unit));
    if (course_ == &courses_[0]) used_[unit] = true;
    entering_[unit] = false;  // pinned from here on
    follow(unit);
  }
  return {};
}

Result<void> Prefetcher::enter(const Trace::Access& units) noexcept {
  if (!course_->recording && !course_->trace.matches(course_->position, units)) {
    course_->recording = true;
    follow_all();
  }
  if (course_->recording) {  // a departure keeps what came before it
    course_->trace.truncate(course_->position);
    course_->trace.record(units);
  }
  ++course_->position;
  ARTESIAN_TRY_VOID(demand(units));
  return look_ahead();
}

/// Drops units that are needed later than in `next_use` accesses until one more may be live; none
/// if that would not do. Returns whether it may.
Result<bool> Prefetcher::drop_to_max_live(std::uint32_t one_more, std::uint64_t next_use) noexcept {
  const std::uint64_t numel_max = limits_.max_live_parameters;
  if (live_ + numel_[one_more] <= numel_max) return true;
  const std::uint64_t droppable = next_uses_.evictable_after(now(), now() + next_use);
  const std::uint64_t least = live_ + numel_[one_more] - droppable;
  if (least > numel_max) return false;
  while (live_ + numel_[one_more] > numel_max) {
    ARTESIAN_TRY(dropped, make_room(next_use));
    ARTESIAN_CHECK(dropped, live_, numel_max);
  }
  return true;
}

Result<void> Prefetcher::look_ahead() noexcept {
  if (course_->recording) return {};
  const Trace& trace = course_->trace;
  const std::uint64_t last = accesses_before_ + trace.size();  // ordinal of the round's last access
  for (;;) {
    const std::uint64_t ordinal = next_uses_.first_absent();
    if (ordinal > last) return {};
    const std::uint64_t next_use = ordinal - now();
    for (const auto unit : trace.at(static_cast<std::size_t>(ordinal - accesses_before_) - 1)) {
      if (!streamed(unit) || residency_.state(unit) != SlotState::Absent) continue;
      if (ahead_ >= limits_.prefetch_bucket_size) return {};
      ARTESIAN_TRY(allowed, drop_to_max_live(unit, next_use));
      if (!allowed) return {};
      ARTESIAN_TRY(started, start_with_room(unit, aio::Priority::Prefetch, next_use));
      if (!started) return {};
      found_[unit] = Found::Prefetched;
      ahead_ += numel_[unit];
    }
  }
}

/// What is given up follows from the trace, and from where slots lie: that is as the step before
/// has left it, so that a unit may be given up in every other step only, or in every third.
void Prefetcher::learn_what_stays() noexcept {
  for (std::size_t unit = 0; unit < doubted_.size(); ++unit) {
    if (given_up_[unit]) {
      doubted_[unit] = doubted_steps;
    } else if (doubted_[unit] != 0) {
      --doubted_[unit];
    }
  }
  used_.assign(used_.size(), false);
  given_up_ = used_;
}

Result<void> Prefetcher::look_ahead_to_next_step() noexcept {
  learn_what_stays();
  to_begin();
  return look_ahead();
}

Result<void> Prefetcher::leave(const Trace::Access& units) noexcept {
  for (const auto unit : units) {
    if (!streamed(unit)) continue;
    ARTESIAN_TRY_VOID(residency_.unpin(unit));
    follow(unit);
    const bool keep =
        !course_->recording && live_ <= limits_.max_live_parameters &&
        course_->trace.reuse_distance(course_->position - 1, unit) <= limits_.max_reuse_distance;
    if (!keep) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

Result<void> Prefetcher::end_step() noexcept {
  if (close_recording()) follow_all();
  return stop_fetching();
}

Result<void> Prefetcher::stop_fetching() noexcept {
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (residency_.state(unit) == SlotState::Fetching) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

}  // namespace artesian::zero3
