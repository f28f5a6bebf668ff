// The prefetcher by linear scans: at each decision it looks at every unit and walks the trace. The
// real one makes the same decisions in logarithmic time; prefetcher_twin_test.cpp compares them.
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

  void begin_step() {
    leave_evaluations();
    start_round();
  }
  Result<void> begin_pass(Course course) {
    const bool was_in_steps = in_steps();
    if (course == Course::Steps) {
      leave_evaluations();
      return was_in_steps ? Result<void>() : look_ahead();
    }
    end_round_of_evaluations();
    course_ = &courses_[1];
    if (was_in_steps) {
      course_->statistics = {};
      passes_ = 0;
    }
    if (++passes_ > 1) course_->repeats = true;
    return {};
  }
  std::size_t position() const { return course_->round.size(); }
  void rewind(std::size_t position) {
    course_->round.resize(position);
    course_->place = 0;
    for (const Met& met : course_->round) {
      if (met.match != nowhere) course_->place = met.match + 1;
    }
    course_->lost = strays_in_a_row() >= Prefetcher::strays_max;
  }
  Result<void> enter(const AccessOrder::Access& units);
  Result<void> leave(const AccessOrder::Access& units);
  Result<void> end_step(StepEnd end = StepEnd::Whole);
  Result<void> look_ahead_to_next_step() {
    leave_evaluations();
    start_round();
    return look_ahead();
  }
  const FetchStatistics& statistics() const { return courses_[0].statistics; }

 private:
  enum class Found : std::uint8_t { Demand, Prefetched, Reused };
  static constexpr std::size_t nowhere = AccessOrder::nowhere;
  struct Known {  // an access of the order
    AccessOrder::Access units;
    std::uint32_t missed = 0;
  };
  struct Met {  // an access of this round
    AccessOrder::Access units;
    std::size_t match = nowhere;
  };
  struct Future {
    std::vector<Known> order;
    std::vector<Met> round;
    bool lost = false;
    bool repeats = false;
    std::size_t place = 0;
    FetchStatistics statistics;
  };

  bool in_steps() const { return course_ == &courses_[0]; }
  bool followed() const { return !course_->order.empty() && !course_->lost; }
  std::size_t strays_in_a_row() const {
    std::size_t count = 0;
    for (const Met& met : course_->round) count = met.match == nowhere ? count + 1 : 0;
    return count;
  }
  void start_round() {
    course_->round.clear();
    course_->place = 0;
    course_->lost = false;
  }
  void end_round(StepEnd end = StepEnd::Whole) {
    if (!course_->round.empty()) learn(end);
    start_round();
  }
  void end_round_of_evaluations() {
    if (!in_steps()) end_round();
  }
  void leave_evaluations() {
    if (in_steps()) return;
    end_round();
    course_->repeats = passes_ > 1;
    course_ = &courses_[0];
  }
  void learn(StepEnd end);
  Result<void> advance(const AccessOrder::Access& units);
  bool keeps(std::uint32_t unit) const {
    return followed() && live_ <= limits_.max_live_parameters &&
           reuse_distance(unit) <= limits_.max_reuse_distance;
  }
  std::uint64_t next_use(std::uint32_t unit) const;
  std::uint64_t reuse_distance(std::uint32_t unit) const;
  Result<void> demand(const AccessOrder::Access& units);
  Result<bool> make_room(std::uint32_t for_unit, std::uint64_t next_use_min);
  Result<bool> start_with_room(std::uint32_t unit, aio::Priority priority,
                               std::uint64_t next_use_min);
  Result<bool> drop_to_max_live(std::uint32_t one_more, std::uint64_t next_use_min);
  Result<void> look_ahead();
  Result<void> drop(std::uint32_t unit);
  void count_live() {
    course_->statistics.live_parameters_max =
        std::max(course_->statistics.live_parameters_max, live_);
  }

  const Layout& layout_;
  tiering::UnitSlots& residency_;
  const PrefetchLimits limits_;
  std::vector<std::uint64_t> numel_;
  std::array<Future, 2> courses_;
  Future* course_ = &courses_[0];
  std::size_t passes_ = 0;
  std::vector<Found> found_;
  std::vector<bool> entering_;
  std::uint64_t live_ = 0;
  std::uint64_t ahead_ = 0;
};

/// Accesses from the present one until the unit's next use, cyclically.
inline std::uint64_t NaivePrefetcher::next_use(std::uint32_t unit) const {
  const std::size_t size = course_->order.size();
  for (std::size_t ahead = 1; ahead <= size; ++ahead) {
    const AccessOrder::Access& access = course_->order[(course_->place - 1 + ahead) % size].units;
    if (std::find(access.begin(), access.end(), unit) != access.end()) return ahead;
  }
  return AccessOrder::never;
}

inline std::uint64_t NaivePrefetcher::reuse_distance(std::uint32_t unit) const {
  std::uint64_t distance = 0;
  const std::size_t size = course_->order.size();
  for (std::size_t ahead = 1; ahead <= size; ++ahead) {
    const AccessOrder::Access& access = course_->order[(course_->place - 1 + ahead) % size].units;
    if (std::find(access.begin(), access.end(), unit) != access.end()) return distance;
    for (const auto touched : access) distance += numel_[touched];
  }
  return AccessOrder::never;
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
    const std::uint64_t next = followed() ? next_use(unit) : AccessOrder::never;
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

inline Result<void> NaivePrefetcher::demand(const AccessOrder::Access& units) {
  AccessOrder::Access by_size = units;
  for (const auto unit : by_size) entering_[unit] = true;  // none may be evicted for another
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
    for (const auto unit : by_size) ARTESIAN_TRY_VOID(drop(unit));  // they were in each other's way
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

/// Aligns the round with the order: each access is one of the order, or a stray.
inline Result<void> NaivePrefetcher::advance(const AccessOrder::Access& units) {
  if (!in_steps() && !course_->order.empty() && course_->place == course_->order.size()) {
    end_round();
    course_->repeats = true;
  }
  Met met{.units = units};
  const std::size_t begin = course_->place;
  if (followed()) {
    for (std::size_t ahead = 0; ahead < Prefetcher::near; ++ahead) {
      if (met.match != nowhere || begin + ahead >= course_->order.size()) break;
      if (course_->order[begin + ahead].units == units) met.match = begin + ahead;
    }
  }
  course_->round.push_back(met);
  if (met.match == nowhere) {
    if (!course_->order.empty() && strays_in_a_row() >= Prefetcher::strays_max)
      course_->lost = true;
    return {};
  }
  course_->place = met.match + 1;
  for (std::size_t skipped = begin; skipped < met.match; ++skipped) {
    for (const auto unit : course_->order[skipped].units) {
      if (std::find(units.begin(), units.end(), unit) != units.end()) continue;
      const bool held = residency_.pinned(unit);
      if (held || residency_.state(unit) == tiering::SlotState::Absent) continue;
      if (!keeps(unit)) {
        ARTESIAN_TRY_VOID(drop(unit));
      } else if (found_[unit] == Found::Prefetched) {
        ahead_ -= numel_[unit];
        found_[unit] = Found::Reused;
      }
    }
  }
  return {};
}

inline void NaivePrefetcher::learn(StepEnd end) {
  auto& [order, round, lost, repeats, place, statistics] = *course_;
  std::size_t strays = 0;
  for (const Met& met : round) strays += met.match == nowhere ? 1 : 0;
  if (order.empty() || lost || 4 * (round.size() - strays) < round.size()) {
    order.clear();
    for (const Met& met : round) order.push_back({met.units, 0});
    return;
  }
  const bool followed_to_its_end = strays == 0 && place == round.size();
  if (followed_to_its_end && end == StepEnd::Whole) order.resize(place);
  for (Known& known : order) ++known.missed;
  for (const Met& met : round) {
    if (met.match == nowhere) continue;
    order[met.match].missed = 0;
  }
  std::size_t place_of_stray = 0;  // before this access
  std::size_t inserted = 0;
  for (const Met& met : round) {
    if (met.match != nowhere) {
      place_of_stray = met.match + 1;
      continue;
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place_of_stray + inserted++),
                 Known{met.units, 0});
  }
  std::erase_if(order,
                [](const Known& known) { return known.missed >= Prefetcher::forgotten_after; });
}

inline Result<void> NaivePrefetcher::enter(const AccessOrder::Access& units) {
  ARTESIAN_TRY_VOID(advance(units));
  ARTESIAN_TRY_VOID(demand(units));
  return look_ahead();
}

/// Drops units that are needed later than in `next_use_min` accesses until one more may be live;
/// none if that would not suffice. Returns whether one more may be live.
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
  if (!followed()) return {};
  const std::size_t size = course_->order.size();
  const std::size_t end = course_->repeats ? course_->place + size : size;
  for (std::size_t index = course_->place; index < end; ++index) {
    for (const auto unit : course_->order[index % size].units) {
      if (residency_.state(unit) != tiering::SlotState::Absent) continue;
      if (ahead_ >= limits_.prefetch_bucket_size) return {};
      const std::uint64_t until = index - course_->place + 1;
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

inline Result<void> NaivePrefetcher::leave(const AccessOrder::Access& units) {
  for (const auto unit : units) {
    ARTESIAN_TRY_VOID(residency_.unpin(unit));
    if (!keeps(unit)) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

inline Result<void> NaivePrefetcher::end_step(StepEnd end) {
  leave_evaluations();
  end_round(end);
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (residency_.state(unit) == tiering::SlotState::Fetching) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

}  // namespace artesian::zero3
