// UpdateOrder: the order in which a training step updates units. It moves no bytes:
// flow/update_flow.h asks it for the next unit, updates the unit, and reports that.
//
// A step's update is made in up to two parts. Some units are updated under the step's last
// backward, each once its own gradient is final, in the order in which gradients become final. All
// other units are updated in the next forward, in the order of their use: on demand of a unit or a
// later one, or earlier if that costs nothing. If every gradient is in memory that the pass reads
// in place, both parts are one pass: state that the next forward updates first is then read ahead
// under the last backward. A unit that a separate device updates by itself is in no pass: it is
// updated between the two parts.
//
//    Idle ── begin_ahead ──▶ Reading, Begun or Tried ── begin_deferred ──▶ Deferred ── finish ──▶
//    Idle
//
// If the update may still change or be dropped, its phase is Tried: roll_back then undoes it, and
// begin_deferred updates all units. After a step that was rolled back, the next step does not try.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

enum class UpdatePhase : std::uint8_t {
  Idle,      // no update has begun
  Reading,   // state for the next forward's update is read ahead; nothing is updated
  Begun,     // units are updated under the last backward, finally
  Tried,     // as Begun, but the update may be rolled back
  Deferred,  // all gradients are known; the remaining units are updated on demand
};

enum class UpdateCall : std::uint8_t {
  BeginAhead,     // the step's last backward begins
  Final,          // the gradient of the next unit of ahead() is final
  Update,         // the next unit is updated
  RollBack,       // undo the updates of phase Tried
  StopReading,    // drop state that was read ahead
  BeginDeferred,  // all gradients are known, and the step makes an update
  Finish,         // all units are updated
};

/// True if this call is allowed in this phase.
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
static_assert(!is_legal(UpdatePhase::Begun, UpdateCall::RollBack));  // the old values were not kept
static_assert(!is_legal(UpdatePhase::Begun,
                        UpdateCall::StopReading));  // some units are already updated
static_assert(!is_legal(UpdatePhase::Deferred, UpdateCall::BeginAhead));
static_assert(!is_legal(UpdatePhase::Reading, UpdateCall::Update));  // no gradient is final yet

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
  /// True if units may be updated under the last backward, and begin_deferred has not been called
  /// yet.
  bool under_backward() const noexcept {
    return phase_ == UpdatePhase::Begun || phase_ == UpdatePhase::Tried;
  }

  /// True if the units left to forward belong to the pass that begins under backward, and are read
  /// ahead in it: every gradient is in memory, so that gradients need no item of the staging ring.
  /// False before a measuring pass.
  bool reads_ahead() const noexcept {
    return placement_.gradients_in_memory() && !placement_.measures;
  }
  /// True if begin_ahead(units, tried) would continue with state that was read ahead for the
  /// previous, skipped step.
  bool goes_on_reading(const std::vector<std::uint32_t>& units, bool tried) const noexcept {
    return phase_ == UpdatePhase::Reading && (units.empty() || (tried && !may_try_));
  }
  /// Begins the step's last backward; these units are updated under it, in this order, each once.
  /// `tried`: the updates may be rolled back; then `units` is ignored after a step that was rolled
  /// back. pass() holds these units and those that are read ahead after them. Calls in the wrong
  /// order abort.
  void begin_ahead(std::vector<std::uint32_t> units, bool tried);
  /// Reports that the gradient of the next unit of ahead() is final.
  void gradient_is_final(std::uint32_t unit) noexcept;
  /// Rolls everything back: ahead() is then empty, and no unit is updated.
  void roll_back() noexcept;
  /// Drops the state that was read ahead: begin_deferred's pass reads it again.
  void stop_reading() noexcept;
  /// Called when all gradients are known and every unit of ahead() is updated. Returns true if the
  /// pass under way continues with the other units, false if pass() is a new one.
  bool begin_deferred();
  /// Called when every unit of the pass is updated.
  void finish() noexcept;
  /// Called when the step's gradients are known. `as_begun`: the speculative update was right, so
  /// that the next step may try, too.
  void judged(bool as_begun) noexcept { may_try_ = as_begun; }

  /// Units of the current pass in order, those of ahead() first.
  const std::vector<std::uint32_t>& pass() const noexcept { return pass_; }
  std::span<const std::uint32_t> ahead() const noexcept { return std::span(pass_).first(ahead_); }
  /// Units of ahead() with final gradients; and the pass's updated units.
  std::span<const std::uint32_t> finals() const noexcept { return std::span(pass_).first(final_); }
  std::span<const std::uint32_t> updated() const noexcept {
    return std::span(pass_).first(updated_);
  }
  /// The pass's units that are not updated; whether there are any; and the next of them.
  std::span<const std::uint32_t> left() const noexcept {
    return std::span(pass_).subspan(updated_);
  }
  bool some_left() const noexcept { return updated_ < pass_.size(); }
  std::uint32_t next() const noexcept {
    ARTESIAN_CHECK(some_left(), updated_, pass_.size());
    return pass_[updated_];
  }
  /// True if the next unit must be updated before `unit` is used, since it is not later in the
  /// order.
  bool demands(std::uint32_t unit) const noexcept {
    return phase_ == UpdatePhase::Deferred && some_left() && turn(next()) <= turn(unit);
  }
  /// True if the next unit may be updated before it is demanded. Under backward this needs its
  /// final gradient. Later, `keeps(unit)` must tell that its slot stays until forward uses it, as
  /// otherwise its parameters would be read again.
  template <typename Keeps>
  bool may_update_next(const Keeps& keeps) const noexcept {
    if (!some_left()) return false;
    return phase_ == UpdatePhase::Deferred ? keeps(next()) : updated_ < final_;
  }
  /// Marks the next unit as updated.
  void update_next() noexcept;
  /// True if the unit is in ahead(), in a step whose update is not deferred yet.
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
  std::vector<std::size_t>
      turns_;  // each unit's place in the order of updates, from 1; 0 for frozen units
  std::vector<std::uint32_t> pass_;
  // number of units at the pass's beginning that are updated under backward
  std::size_t ahead_ = 0;
  std::size_t final_ = 0;         // number of those with final gradients
  std::size_t updated_ = 0;       // number of the pass's updated units
  std::vector<bool> is_ahead_;    // by unit
  std::vector<bool> is_pending_;  // by unit
  bool may_try_ = true;
};

}  // namespace artesian::zero3
