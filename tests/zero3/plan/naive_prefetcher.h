// The prefetcher by linear scans: at each decision it looks at every unit and walks the trace. The
// product's makes the same decisions in logarithmic time; prefetcher_twin_test.cpp compares them.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {

class NaivePrefetcher {
 public:
  NaivePrefetcher(const Layout& layout, tiering::UnitSlots& residency, const PrefetchLimits& limits)
      : layout_(layout), residency_(residency), limits_(limits) {
    for (const Unit& unit : layout.units) numel_.push_back(unit.numel);
    found_.assign(layout.units.size(), Found::Demand);
    entering_.assign(layout.units.size(), false);
  }

  void begin_step() { course_->position = 0; }
  void begin_evaluation() {
    course_ = &courses_[1];
    course_->position = 0;
    course_->statistics = {};
  }
  Result<void> end_evaluation() {
    close_recording();
    course_ = &courses_[0];
    return look_ahead();
  }
  std::size_t position() const { return course_->position; }
  void rewind(std::size_t position) {
    course_->position = position;
    if (course_->recording) course_->trace.resize(std::min(position, course_->trace.size()));
  }
  Result<void> enter(const Trace::Access& units);
  Result<void> leave(const Trace::Access& units);
  Result<void> end_step();
  Result<void> look_ahead_to_next_step() {
    course_->position = 0;
    return look_ahead();
  }
  const FetchStatistics& statistics() const { return courses_[0].statistics; }

 private:
  enum class Found : std::uint8_t { Demand, Prefetched, Reused };
  struct Course {
    std::vector<Trace::Access> trace;
    bool recording = true;
    std::size_t position = 0;
    FetchStatistics statistics;
  };

  std::uint64_t next_use(std::uint32_t unit) const;
  std::uint64_t reuse_distance(std::uint32_t unit) const;
  Result<void> demand(const Trace::Access& units);
  Result<bool> make_room(std::uint32_t for_unit, std::uint64_t next_use_min);
  Result<bool> start_with_room(std::uint32_t unit, aio::Priority priority,
                               std::uint64_t next_use_min);
  Result<bool> drop_to_max_live(std::uint32_t one_more, std::uint64_t next_use_min);
  Result<void> look_ahead();
  Result<void> drop(std::uint32_t unit);
  void close_recording() {
    if (course_->position == 0) return;
    course_->trace.resize(course_->position);
    course_->recording = false;
  }
  void count_live() {
    course_->statistics.live_parameters_max =
        std::max(course_->statistics.live_parameters_max, live_);
  }

  const Layout& layout_;
  tiering::UnitSlots& residency_;
  const PrefetchLimits limits_;
  std::vector<std::uint64_t> numel_;
  std::array<Course, 2> courses_;
  Course* course_ = &courses_[0];
  std::vector<Found> found_;
  std::vector<bool> entering_;
  std::uint64_t live_ = 0;
  std::uint64_t ahead_ = 0;
};

/// Accesses from the present one until the unit's next use, going round.
inline std::uint64_t NaivePrefetcher::next_use(std::uint32_t unit) const {
  for (std::size_t ahead = 1; ahead <= course_->trace.size(); ++ahead) {
    const Trace::Access& access =
        course_->trace[(course_->position - 1 + ahead) % course_->trace.size()];
    if (std::find(access.begin(), access.end(), unit) != access.end()) return ahead;
  }
  return Trace::never;
}

inline std::uint64_t NaivePrefetcher::reuse_distance(std::uint32_t unit) const {
  std::uint64_t distance = 0;
  for (std::size_t ahead = 1; ahead <= course_->trace.size(); ++ahead) {
    const Trace::Access& access =
        course_->trace[(course_->position - 1 + ahead) % course_->trace.size()];
    if (std::find(access.begin(), access.end(), unit) != access.end()) return distance;
    for (const auto touched : access) distance += numel_[touched];
  }
  return Trace::never;
}

inline Result<void> NaivePrefetcher::drop(std::uint32_t unit) {
  if (residency_.state(unit) == tiering::SlotState::Absent) return {};
  if (found_[unit] == Found::Prefetched) ahead_ -= numel_[unit];
  found_[unit] = Found::Demand;
  live_ -= numel_[unit];
  return residency_.drop(unit);
}

/// Drops the unpinned unit whose next use is farthest, if that is later than `next_use_min`
/// accesses from now. Returns whether something was dropped.
inline Result<bool> NaivePrefetcher::make_room(std::uint32_t for_unit, std::uint64_t next_use_min) {
  std::uint32_t victim = for_unit;
  std::uint64_t farthest = next_use_min;
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (entering_[unit] || residency_.pinned(unit)) continue;
    if (unit == for_unit || residency_.state(unit) == tiering::SlotState::Absent) continue;
    const std::uint64_t next = course_->recording ? Trace::never : next_use(unit);
    if (victim == for_unit ? next > next_use_min : next > farthest) {
      victim = unit;
      farthest = next;
    }
  }
  if (victim == for_unit) return false;
  ARTESIAN_TRY_VOID(drop(victim));
  return true;
}

inline Result<bool> NaivePrefetcher::start_with_room(std::uint32_t unit, aio::Priority priority,
                                                     std::uint64_t next_use_min) {
  for (;;) {
    const auto started = residency_.start(unit, priority);
    if (started.has_value()) break;
    if (started.error().code != ErrorCode::Exhausted) return started.error();
    ARTESIAN_TRY(dropped, make_room(unit, next_use_min));
    if (!dropped) return false;
  }
  live_ += numel_[unit];
  count_live();
  return true;
}

inline Result<void> NaivePrefetcher::demand(const Trace::Access& units) {
  Trace::Access by_size = units;
  for (const auto unit : by_size) entering_[unit] = true;  // none makes room for another
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return numel_[a] > numel_[b]; });
  for (int attempt = 0;; ++attempt) {
    bool complete = true;
    for (const auto unit : by_size) {
      if (residency_.state(unit) != tiering::SlotState::Absent) continue;
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
    entering_[unit] = false;  // pinned from here on
  }
  return {};
}

inline Result<void> NaivePrefetcher::enter(const Trace::Access& units) {
  if (!course_->recording &&
      (course_->position >= course_->trace.size() || course_->trace[course_->position] != units))
    course_->recording = true;
  if (course_->recording) {  // a departure keeps what came before it
    course_->trace.resize(course_->position);
    course_->trace.push_back(units);
  }
  ++course_->position;
  ARTESIAN_TRY_VOID(demand(units));
  return look_ahead();
}

/// Drops units that are needed later than in `next_use_min` accesses until one more may be live;
/// none if that would not do. Returns whether it may.
inline Result<bool> NaivePrefetcher::drop_to_max_live(std::uint32_t one_more,
                                                      std::uint64_t next_use_min) {
  const std::uint64_t numel_max = limits_.max_live_parameters;
  if (live_ + numel_[one_more] <= numel_max) return true;
  std::uint64_t least = live_ + numel_[one_more];
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (residency_.pinned(unit)) continue;
    if (residency_.state(unit) == tiering::SlotState::Absent) continue;
    if (next_use(unit) > next_use_min) least -= numel_[unit];
  }
  if (least > numel_max) return false;
  while (live_ + numel_[one_more] > numel_max) {
    ARTESIAN_TRY(dropped, make_room(one_more, next_use_min));
    ARTESIAN_CHECK(dropped, live_, numel_max);
  }
  return true;
}

inline Result<void> NaivePrefetcher::look_ahead() {
  if (course_->recording) return {};
  for (std::size_t index = course_->position; index < course_->trace.size(); ++index) {
    for (const auto unit : course_->trace[index]) {
      if (residency_.state(unit) != tiering::SlotState::Absent) continue;
      if (ahead_ >= limits_.prefetch_bucket_size) return {};
      const std::uint64_t until = index - course_->position + 1;
      ARTESIAN_TRY(allowed, drop_to_max_live(unit, until));
      if (!allowed) return {};
      ARTESIAN_TRY(started, start_with_room(unit, aio::Priority::Prefetch, until));
      if (!started) return {};
      found_[unit] = Found::Prefetched;
      ahead_ += numel_[unit];
    }
  }
  return {};
}

inline Result<void> NaivePrefetcher::leave(const Trace::Access& units) {
  for (const auto unit : units) {
    ARTESIAN_TRY_VOID(residency_.unpin(unit));
    const bool keep = !course_->recording && live_ <= limits_.max_live_parameters &&
                      reuse_distance(unit) <= limits_.max_reuse_distance;
    if (!keep) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

inline Result<void> NaivePrefetcher::end_step() {
  close_recording();
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (residency_.state(unit) == tiering::SlotState::Fetching) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

}  // namespace artesian::zero3
