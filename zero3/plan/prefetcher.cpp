#include "zero3/plan/prefetcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

using tiering::SlotState;

namespace {

constexpr std::uint32_t doubted_steps = 16;  // after a step in which a unit was evicted

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
      courses_{Future(numel_), Future(numel_)},
      next_uses_(numel_) {
  found_.assign(layout.units.size(), Found::Demand);
  entering_.assign(layout.units.size(), false);
  used_ = given_up_ = entering_;
  doubted_.assign(layout.units.size(), 0);
}

/// Updates next_uses_ for a unit's new state and the present time.
void Prefetcher::follow(std::uint32_t unit) noexcept {
  if (!streamed(unit)) return;
  const bool absent = residency_.state(unit) == SlotState::Absent;
  const bool held = entering_[unit] || residency_.pinned(unit);
  const std::uint64_t ahead =
      course_->followed() ? course_->order.next_use(course_->place - 1, unit) : AccessOrder::never;
  next_uses_.set(unit,
                 absent ? Holding::Absent
                 : held ? Holding::Ignored
                        : Holding::Evictable,
                 ahead == AccessOrder::never ? NextUses::never : now() + ahead);
}

/// Called when the order was learned, proved wrong, or replaced: all next uses change.
void Prefetcher::follow_all() noexcept {
  next_uses_.reset(course_->followed() ? course_->order.size() : 0);
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) follow(unit);
}

/// Goes to the beginning of a round. From the end of the order this changes no unit's next use.
void Prefetcher::to_begin() noexcept {
  Future& course = *course_;
  const bool same = !course.lost && (course.place == 0 || course.place == course.order.size());
  accesses_before_ += course.place;
  course.place = 0;
  course.lost = false;
  course.round.clear();
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
    if (!streamed(unit)) ARTESIAN_TRY_VOID(gather(unit));
  }
  count_live();
  return {};
}

Result<void> Prefetcher::gather(std::uint32_t persistent) noexcept {
  ARTESIAN_CHECK(!streamed(persistent), persistent);
  ARTESIAN_TRY_VOID(residency_.start(persistent, aio::Priority::Demand));
  ARTESIAN_TRY_VOID(residency_.acquire(persistent));  // pinned permanently
  live_ += numel_[persistent];
  return {};
}

void Prefetcher::begin_step() noexcept {
  leave_evaluations();
  to_begin();
}

void Prefetcher::leave_evaluations() noexcept {
  if (in_steps()) return;
  end_round();
  course_->repeats = passes_ > 1;
  course_ = &courses_[0];
  follow_all();
}

Result<void> Prefetcher::begin_pass(Course course) noexcept {
  if (course == Course::Steps) {
    if (in_steps()) return {};
    leave_evaluations();
    return look_ahead();
  }
  if (in_steps()) {
    passes_ = 0;
    course_ = &courses_[1];
    course_->statistics = {};
    follow_all();
  } else {
    end_round();
    course_->repeats = true;
  }
  ++passes_;
  return {};
}

std::size_t Prefetcher::Future::strays_in_a_row() const noexcept {
  const auto match = std::find_if(round.rbegin(), round.rend(), [](const Entered& entered) {
    return entered.match != AccessOrder::nowhere;
  });
  return static_cast<std::size_t>(match - round.rbegin());
}

void Prefetcher::rewind(std::size_t position) noexcept {
  Future& course = *course_;
  ARTESIAN_CHECK(position <= course.round.size(), position, course.round.size());
  course.round.resize(position);
  const std::size_t strays = course.strays_in_a_row();
  course.place = strays == position ? 0 : course.round[position - strays - 1].match + 1;
  course.lost = course.recorded && strays >= strays_max;
  follow_all();
}

void Prefetcher::end_round(StepEnd end) noexcept {
  const bool learned = learn(end);
  to_begin();
  if (learned) follow_all();
}

/// Determines the new order: Note [Departures]. Returns whether it has changed.
bool Prefetcher::learn(StepEnd end) noexcept {
  Future& course = *course_;
  if (course.round.empty()) return false;  // nothing ran, nothing was learned
  ARTESIAN_CHECK(course.known.size() == course.order.size(), course.known.size());
  std::vector<bool> met(course.order.size(), false);
  std::size_t matches = 0;
  for (const Entered& entered : course.round) {
    if (entered.match == AccessOrder::nowhere) continue;
    ARTESIAN_CHECK(entered.match < met.size() && !met[entered.match], entered.match, met.size());
    met[entered.match] = true;
    ++matches;
  }
  if (!course.followed() || 4 * matches < course.round.size()) {
    std::vector<Step> accesses;
    for (Entered& entered : course.round) {
      const bool known = entered.match != AccessOrder::nowhere;
      accesses.push_back(
          {known ? course.order.at(entered.match) : std::move(entered.units), Known()});
    }
    record(std::move(accesses));
    return true;
  }
  const bool ended_early = matches == course.round.size() && matches == course.place &&
                           course.place != course.order.size();
  if (ended_early && end == StepEnd::Whole) {
    course.order.truncate(course.place);
    course.known.resize(course.place);
    met.resize(course.place);
  }
  bool forgets = false;
  for (std::size_t index = 0; index < met.size(); ++index) {
    std::uint32_t& missed = course.known[index].missed;
    missed = met[index] ? 0 : missed + 1;
    forgets = forgets || missed == forgotten_after;
  }
  if (matches != course.round.size() || forgets) {
    record(merged());
    return true;
  }
  return ended_early;
}

/// The order with this round's strays, and without accesses that have not been met for long.
std::vector<Prefetcher::Step> Prefetcher::merged() noexcept {
  Future& course = *course_;
  std::vector<Step> accesses;
  std::size_t place = 0;
  const auto take_until = [&](std::size_t end) {
    for (; place < end; ++place) {
      if (course.known[place].missed == forgotten_after) continue;
      accesses.push_back({course.order.at(place), course.known[place]});
    }
  };
  for (Entered& entered : course.round) {
    if (entered.match != AccessOrder::nowhere) {
      ARTESIAN_CHECK(place <= entered.match, place, entered.match);  // a round only moves forward
      take_until(entered.match + 1);
    } else {
      accesses.push_back({std::move(entered.units), Known()});
    }
  }
  take_until(course.order.size());
  return accesses;
}

void Prefetcher::record(std::vector<Step> accesses) noexcept {
  Future& course = *course_;
  course.order.truncate(0);
  course.known.clear();
  for (const Step& step : accesses) {
    course.order.record(step.units);
    course.known.push_back(step.known);
  }
  ARTESIAN_CHECK(course.known.size() == course.order.size(), course.known.size());
  course.recorded = true;
  course.place = course.order.size();
}

Result<void> Prefetcher::drop(std::uint32_t unit) noexcept {
  if (residency_.state(unit) == SlotState::Absent) return {};
  if (in_steps() && !used_[unit]) given_up_[unit] = true;
  ARTESIAN_CHECK(live_ >= numel_[unit], live_, numel_[unit]);
  ARTESIAN_CHECK(found_[unit] != Found::Prefetched || ahead_ >= numel_[unit], ahead_);
  if (found_[unit] == Found::Prefetched) ahead_ -= numel_[unit];
  found_[unit] = Found::Demand;
  live_ -= numel_[unit];
  auto dropped = residency_.drop(unit);
  follow(unit);
  return dropped;
}

Result<void> Prefetcher::drop_all() noexcept {
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (!streamed(unit)) ARTESIAN_TRY_VOID(residency_.unpin(unit));
    ARTESIAN_TRY_VOID(drop(unit));
  }
  ARTESIAN_CHECK(live_ == 0 && ahead_ == 0, live_, ahead_);
  return {};
}

Result<void> Prefetcher::forget(std::uint32_t unit) noexcept {
  if (streamed(unit)) return drop(unit);
  ARTESIAN_TRY_VOID(residency_.unpin(unit));
  ARTESIAN_TRY_VOID(drop(unit));
  return gather(unit);
}

Result<void> Prefetcher::clear() noexcept {
  auto cleared = residency_.clear();
  follow_all();
  return cleared;
}

/// Evicts the unpinned unit whose next use is farthest, if that is later than `next_use_min`
/// accesses from now. Returns whether a unit was evicted.
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

/// Begins to fetch the units that are absent. Returns those that are streamed, by size.
Result<AccessOrder::Access> Prefetcher::demand(const AccessOrder::Access& units) noexcept {
  AccessOrder::Access by_size;
  for (const auto unit : units) {
    if (streamed(unit)) by_size.push_back(unit);
  }
  for (const auto unit : by_size) {
    entering_[unit] = true;  // none of these may be evicted for another
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
    for (const auto unit : by_size) {  // their slots were fragmented
      if (!residency_.pinned(unit)) ARTESIAN_TRY_VOID(drop(unit));
    }
  }
  for (const auto unit : by_size) {
    ARTESIAN_CHECK(found_[unit] != Found::Prefetched || ahead_ >= numel_[unit], ahead_);
    if (found_[unit] == Found::Prefetched) ahead_ -= numel_[unit];
    std::uint64_t& counter = found_[unit] == Found::Demand       ? course_->statistics.demand
                             : found_[unit] == Found::Prefetched ? course_->statistics.prefetched
                                                                 : course_->statistics.reused;
    counter += numel_[unit];
    found_[unit] = Found::Reused;
    if (in_steps()) used_[unit] = true;
  }
  return by_size;
}

/// Finds the access in the order.
Result<void> Prefetcher::advance(const AccessOrder::Access& units) noexcept {
  Future& course = *course_;
  if (!in_steps() && course.recorded && course.place == course.order.size()) {
    end_round();  // for an evaluation without begin_pass()
    course.repeats = true;
  }
  Entered entered;
  if (course.followed())
    entered.match = course.order.find(units, course.place, course.place + near);
  const std::size_t match = entered.match;
  if (match == AccessOrder::nowhere) entered.units = units;
  course.round.push_back(std::move(entered));
  if (match != AccessOrder::nowhere) return skip_to(match, units);
  if (course.followed() && course.strays_in_a_row() == strays_max) {
    course.lost = true;
    follow_all();
  }
  return {};
}

/// Skips accesses of the order, up to the one that was entered.
Result<void> Prefetcher::skip_to(std::size_t index, const AccessOrder::Access& entered) noexcept {
  Future& course = *course_;
  ARTESIAN_CHECK(course.place <= index && index < course.order.size(), course.place, index);
  std::size_t skipped = std::exchange(course.place, index + 1);
  for (; skipped < index; ++skipped) {
    for (const auto unit : course.order.at(skipped)) {
      const bool used = std::find(entered.begin(), entered.end(), unit) != entered.end();
      if (!streamed(unit) || used) continue;
      follow(unit);
      if (residency_.state(unit) == SlotState::Absent || residency_.pinned(unit)) continue;
      if (!keeps(unit)) {
        ARTESIAN_TRY_VOID(drop(unit));
      } else if (found_[unit] == Found::Prefetched) {  // no longer the next access
        ARTESIAN_CHECK(ahead_ >= numel_[unit], ahead_, numel_[unit]);
        ahead_ -= numel_[unit];
        found_[unit] = Found::Reused;
      }
    }
  }
  return {};
}

Result<void> Prefetcher::enter(const AccessOrder::Access& units) noexcept {
  ARTESIAN_TRY_VOID(advance(units));
  ARTESIAN_TRY(demanded, demand(units));
  auto ahead = look_ahead();  // before the wait, so that the disk never idles in it
  for (const auto unit : demanded) {
    ARTESIAN_TRY_VOID(residency_.acquire(unit));
    entering_[unit] = false;  // pinned from here on
    follow(unit);
  }
  return ahead;
}

/// Evicts units that are needed later than in `next_use` accesses until one more may be live;
/// evicts none if that would not suffice. Returns whether it may.
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
  if (!course_->followed()) return {};
  const AccessOrder& order = course_->order;
  // Ordinal of the last known access: of this round, or of the next one.
  const std::uint64_t last = (course_->repeats ? now() : accesses_before_) + order.size();
  for (;;) {
    const std::uint64_t ordinal = next_uses_.first_absent();
    if (ordinal > last) return {};
    ARTESIAN_CHECK(ordinal > now() && order.size() != 0, ordinal, now());
    const std::uint64_t next_use = ordinal - now();
    const std::uint64_t place = (ordinal - accesses_before_ - 1) % order.size();
    for (const auto unit : order.at(static_cast<std::size_t>(place))) {
      if (!streamed(unit) || residency_.state(unit) != SlotState::Absent) continue;
      if (ahead_ >= limits_.prefetch_bucket_size) return {};
      ARTESIAN_TRY(allowed, drop_to_max_live(unit, next_use));
      if (!allowed) return {};
      ARTESIAN_TRY(started, start_with_room(unit, aio::Priority::Prefetch, next_use));
      if (!started) return {};
      ARTESIAN_CHECK(found_[unit] == Found::Demand, unit);  // it had no slot
      found_[unit] = Found::Prefetched;
      ahead_ += numel_[unit];
    }
  }
}

/// Learns which slots stay. Evictions depend on the trace and on the positions of slots, which
/// earlier steps have determined; so a unit may be evicted only in every second or third step.
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
  leave_evaluations();
  learn_what_stays();
  to_begin();
  return look_ahead();
}

/// True if an unpinned unit should be kept for its next use.
bool Prefetcher::keeps(std::uint32_t unit) const noexcept {
  return course_->followed() && live_ <= limits_.max_live_parameters &&
         course_->order.reuse_distance(course_->place - 1, unit) <= limits_.max_reuse_distance;
}

Result<void> Prefetcher::leave(const AccessOrder::Access& units) noexcept {
  for (const auto unit : units) {
    if (!streamed(unit)) continue;
    ARTESIAN_TRY_VOID(residency_.unpin(unit));
    follow(unit);
    // An enclosing access may also use it.
    if (!residency_.pinned(unit) && !keeps(unit)) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

const AccessOrder::Access* Prefetcher::next_access() const noexcept {
  const Future& course = *course_;
  const bool known = course.followed() && course.place < course.order.size();
  return known ? &course.order.at(course.place) : nullptr;
}

Result<void> Prefetcher::hold(std::uint32_t unit) noexcept {
  ARTESIAN_TRY_VOID(residency_.acquire(unit));
  follow(unit);
  return {};
}

Result<void> Prefetcher::release(std::uint32_t unit) noexcept {
  ARTESIAN_TRY_VOID(residency_.unpin(unit));
  follow(unit);
  return {};
}

Result<void> Prefetcher::end_step(StepEnd end) noexcept {
  leave_evaluations();
  end_round(end);
  return stop_fetching();
}

Result<void> Prefetcher::stop_fetching() noexcept {
  for (std::uint32_t unit = 0; unit < numel_.size(); ++unit) {
    if (residency_.state(unit) == SlotState::Fetching) ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

}  // namespace artesian::zero3
