// UpdateOrder: which unit a training step updates when. It moves nothing: flow/update_flow.h plays
// it, asks which unit is next, updates it, and says so.
//
// A step's update is made in up to two parts. Some units are updated under the step's last
// backward, each once its own gradient is final; they come in the order in which gradients become
// final. All others are left to the next forward, in the order in which that comes to them, and are
// updated when somebody demands one of them or one behind it, or before that where nothing is lost
// by it. Both parts are one pass where every gradient is in memory that the pass reads in place:
// what the next forward updates first is then read beside the last backward already. A unit that a
// separate device updates by itself is in no pass: it is updated between the two parts.
//
//    Idle ── begin_ahead ──▶ Reading, Begun or Tried ── begin_deferred ──▶ Deferred ── finish ──▶
//    Idle
//
// Where the update may still turn out to be another one, or none at all, it is Tried: then
// roll_back undoes it, and begin_deferred has all units. A step after one that was rolled back does
// not try.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

enum class UpdatePhase : std::uint8_t {
  Idle,      // no update is begun
  Reading,   // what the next forward updates first is read, and nothing updated
  Begun,     // under the last backward units are updated, for good
  Tried,     // as Begun, but the update may be rolled back
  Deferred,  // all gradients are known: the rest is updated on demand
};

enum class UpdateCall : std::uint8_t {
  BeginAhead,     // the step's last backward begins
  Final,          // the gradient of the next unit of that part is final
  Update,         // the next unit is updated
  RollBack,       // undo what was tried
  StopReading,    // drop what was read ahead
  BeginDeferred,  // all gradients are known, and the step is updated
  Finish,         // nothing is left
};

/// True if the call is in order.
constexpr bool is_legal(UpdatePhase phase, UpdateCall call) noexcept {
  using P = UpdatePhase;
  const auto is_one_of = [phase](auto... allowed) { return ((phase == allowed) || ...); };
  switch (call) {
    case UpdateCall::BeginAhead: return is_one_of(P::Idle, P::Reading);
    case UpdateCall::Final: return is_one_of(P::Begun, P::Tried);
    case UpdateCall::Update: return is_one_of(P::Begun, P::Tried, P::Deferred);
    case UpdateCall::RollBack: return is_one_of(P::Tried);
    case UpdateCall::StopReading: return is_one_of(P::Idle, P::Reading);
    case UpdateCall::BeginDeferred: return is_one_of(P::Idle, P::Reading, P::Begun, P::Tried);
    case UpdateCall::Finish: return is_one_of(P::Deferred);
  }
  return false;
}
static_assert(!is_legal(UpdatePhase::Begun, UpdateCall::RollBack));  // nothing of it is kept
static_assert(!is_legal(UpdatePhase::Begun,
                        UpdateCall::StopReading));  // some units are of two steps
static_assert(!is_legal(UpdatePhase::Deferred, UpdateCall::BeginAhead));
static_assert(!is_legal(UpdatePhase::Reading, UpdateCall::Update));  // no gradient is final

class UpdateOrder {
 public:
  /// The placement must outlive it. Its units are updated in the order of their numbers.
  explicit UpdateOrder(const Placement& placement);

  /// Sets the order of updates: that of first use in forward. Units that are not named follow. No
  /// update may be under way.
  void set_order(const std::vector<std::uint32_t>& units);
  /// Returns all units that are updated, in this order.
  const std::vector<std::uint32_t>& trained() const noexcept { return trained_; }
  UpdatePhase phase() const noexcept { return phase_; }
  /// True if units are updated under the last backward, and begin_deferred has not been called yet.
  bool under_backward() const noexcept {
    return phase_ == UpdatePhase::Begun || phase_ == UpdatePhase::Tried;
  }

  /// True if what is left to forward is of the pass that begins under backward, and read behind it:
  /// every gradient is in memory, so that none of its own takes an item of the staging ring.
  /// Not before a pass that measures.
  bool reads_ahead() const noexcept {
    return placement_.gradients_in_memory() && !placement_.measures;
  }
  /// True if begin_ahead(units, tried) would continue with what was read since the step before,
  /// which was skipped.
  bool goes_on_reading(const std::vector<std::uint32_t>& units, bool tried) const noexcept {
    return phase_ == UpdatePhase::Reading && (units.empty() || (tried && !may_try_));
  }
  /// The step's last backward begins, and these units are updated under it, in this order, each
  /// once. `tried`: they may be rolled back; then there are none after a step that was. What is
  /// read behind them follows: pass() has both. Errors of order abort.
  void begin_ahead(std::vector<std::uint32_t> units, bool tried);
  /// The gradient of the next of ahead() is final.
  void gradient_is_final(std::uint32_t unit) noexcept;
  /// All is undone: ahead() is empty, and no unit updated.
  void roll_back() noexcept;
  /// Drops what was read: begin_deferred's pass reads it anew.
  void stop_reading() noexcept;
  /// All gradients are known, and every unit of ahead() is updated. Returns true if the pass under
  /// way continues with the rest, false if pass() is a new one.
  bool begin_deferred();
  /// Every unit of the pass is updated.
  void finish() noexcept;
  /// The step's gradients are known. `as_begun`: the tried update was right, so that the next step
  /// may try, too.
  void judged(bool as_begun) noexcept { may_try_ = as_begun; }

  /// Units of the pass under way in order, those of ahead() first.
  const std::vector<std::uint32_t>& pass() const noexcept { return pass_; }
  std::span<const std::uint32_t> ahead() const noexcept { return std::span(pass_).first(ahead_); }
  /// Units of ahead() with final gradients; and the pass's updated units.
  std::span<const std::uint32_t> finals() const noexcept { return std::span(pass_).first(final_); }
  std::span<const std::uint32_t> updated() const noexcept {
    return std::span(pass_).first(updated_);
  }
  /// Those that are not; whether there are any; and the next one.
  std::span<const std::uint32_t> left() const noexcept {
    return std::span(pass_).subspan(updated_);
  }
  bool some_left() const noexcept { return updated_ < pass_.size(); }
  std::uint32_t next() const noexcept {
    ARTESIAN_CHECK(some_left(), updated_, pass_.size());
    return pass_[updated_];
  }
  /// True if the next unit must be updated before `unit` is used: it comes no later in the order.
  bool demands(std::uint32_t unit) const noexcept {
    return phase_ == UpdatePhase::Deferred && some_left() && turn(next()) <= turn(unit);
  }
  /// True if the next unit may be updated though nobody has asked for it: under backward its
  /// gradient is final; later the slot that it fills stays until forward uses it, as `keeps(unit)`
  /// says, or its parameters would be read again.
  template <typename Keeps>
  bool may_update_next(const Keeps& keeps) const noexcept {
    if (!some_left()) return false;
    return phase_ == UpdatePhase::Deferred ? keeps(next()) : updated_ < final_;
  }
  /// The next unit is updated.
  void update_next() noexcept;
  /// True if the unit is of ahead(), in a step whose update is not deferred yet.
  bool is_ahead(std::uint32_t unit) const noexcept { return is_ahead_[unit]; }
  /// True if the unit awaits its update under forward, which also fills its slot.
  bool is_pending(std::uint32_t unit) const noexcept { return is_pending_[unit]; }

 private:
  void expect(UpdateCall call) const noexcept {
    ARTESIAN_CHECK(is_legal(phase_, call), static_cast<int>(phase_), static_cast<int>(call));
  }
  std::size_t turn(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < turns_.size(), unit, turns_.size());
    return turns_[unit];
  }
  std::vector<std::uint32_t> left_to_forward() const;
  void end_pass() noexcept;

  const Placement& placement_;
  UpdatePhase phase_ = UpdatePhase::Idle;
  std::vector<std::uint32_t> trained_;
  std::vector<std::size_t> turns_;  // each unit's place in that order, from 1; frozen: 0
  std::vector<std::uint32_t> pass_;
  std::size_t ahead_ = 0;         // how many of the pass's first units are updated under backward
  std::size_t final_ = 0;         // how many of those have final gradients
  std::size_t updated_ = 0;       // how many units of the pass are updated
  std::vector<bool> is_ahead_;    // by unit
  std::vector<bool> is_pending_;  // by unit
  bool may_try_ = true;
};

}  // namespace artesian::zero3
