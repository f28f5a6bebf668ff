// UpdateFlow: the update of a training step, from the beginning of a step's last backward to the
// end of the next forward: when a pass begins, which unit is updated next, when memory is borrowed,
// what a rollback undoes, and what remains at the step's end. UpdateOrder decides the order of
// units, RingOrder that of sub-groups. This class moves no bytes; a Player derives from it: the
// optimizer (step/optimizer.h) on tiered state, or the plan's rehearsal (plan/rehearsal.cpp) on
// simulated times.
//
// A Player has:
//
//   auto& ring();                     of the pass: a RingOrder, or a class derived from it
//   bool separate() const;            the model computes on a separate device
//   Result<void> begin_pass();        over order().pass(); in phase Tried, ahead() may be rolled
//   back Result<void> abandon_pass();      waits for its reads, and drops the pass void lend(bool);
//   sets whether the ring may borrow memory bool borrows() const;             the ring has borrowed
//   memory Result<void> measure();           Placement::measures: a pass that only reads void
//   fix(unit);                   the unit's update constants are known void begin_refresh(unit);
//   its slot is filled by the update from here on Result<void> end_refresh(unit);   the unit is
//   updated bool keeps(unit) const;           the refreshed slot will still be there in forward
//   bool reduced(unit) const;         its gradient includes all ranks
//   void shadows(Shadows);            those of ahead()
//   Result<void> restore();           old values of updated(), after the pass is abandoned
//   Result<void> settle();            waits for reads of homes outside of the pass
//   Result<void> update_on_device(unit);
//   void count_updates();             the step's update is fixed for every unit
//   Result<void> drain();             at the pass's end: waits for its writes
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "zero3/flow/update_order.h"

namespace artesian::zero3 {

/// What happens to the shadows (second places on NVMe) of speculative updates.
enum class Shadows : std::uint8_t { Begin, Drop, Commit };

template <typename Player>
class UpdateFlow {
 public:
  /// Sets the order of updates: that of first use in forward. Units not listed follow. No update
  /// may be under way. The default is the order of unit numbers.
  void set_order(const std::vector<std::uint32_t>& units) { order_.set_order(units); }
  /// Begins an update before all gradients are known: of `units`, in this order, each once its own
  /// gradient is final. After them, state that defer() will update first is read ahead, as far as
  /// the ring allows, unless some gradients pass through the ring, too. `tried`: the update may be
  /// rolled back; then each of `units` has shadows, or memory for its old state. Errors: the
  /// player's.
  Result<void> begin_ahead(std::vector<std::uint32_t> units, bool tried) {
    if (order_.goes_on_reading(units, tried)) return {};
    ARTESIAN_TRY_VOID(stop_reading());
    order_.begin_ahead(std::move(units), tried);
    if (order_.phase() == UpdatePhase::Idle) return {};
    ARTESIAN_TRY_VOID(player().begin_pass());
    if (speculative()) player().shadows(Shadows::Begin);
    return {};
  }
  /// True if units are being updated under backward, and defer() has not been called yet.
  bool under_backward() const noexcept { return order_.under_backward(); }
  /// True if the update may be rolled back.
  bool speculative() const noexcept { return order_.phase() == UpdatePhase::Tried; }
  /// The number of units updated under backward.
  std::size_t updated_under_backward() const noexcept {
    return under_backward() ? order_.updated().size() : 0;
  }
  bool step_under_way() const noexcept { return order_.phase() == UpdatePhase::Deferred; }

  /// Reports that the gradient of the next of begin_ahead's units is final.
  void gradient_is_final(std::uint32_t unit) {
    order_.gradient_is_final(unit);
    player().fix(unit);
    player().begin_refresh(unit);
  }
  /// Reports that backward has left a stage. After the first stage, which needs the most memory,
  /// reads also use memory freed by activations.
  void stage_is_done() {
    const bool reads = order_.phase() == UpdatePhase::Reading || under_backward();
    if (reads && !player().separate()) player().lend(true);
  }
  /// Rolls back the speculative update: weights, moments and gathered parameters get their old
  /// values, and defer() then updates all units. Errors: as update_up_to.
  Result<void> take_back() {
    ARTESIAN_CHECK(speculative());
    player().shadows(Shadows::Drop);
    player().lend(false);
    ARTESIAN_TRY_VOID(player().abandon_pass());
    ARTESIAN_TRY_VOID(player().restore());
    order_.roll_back();
    return {};
  }
  /// As UpdateOrder::judged.
  void judged(bool as_begun) noexcept { order_.judged(as_begun); }
  /// Ends a step without an update: returns memory borrowed for reading ahead, since the next
  /// forward needs it. Errors: as begin_ahead.
  Result<void> skip() {
    player().lend(false);  // forward will soon need all memory
    return player().borrows() ? stop_reading() : Result<void>();
  }
  /// Drops what was read ahead under backward, so that the ring is free; defer() reads it again.
  /// Not once a unit was updated under backward. Errors: as begin_ahead.
  Result<void> stop_reading() {
    if (order_.phase() != UpdatePhase::Reading) return {};
    order_.stop_reading();
    player().lend(false);
    return player().abandon_pass();
  }

  /// True if the next unit may be updated before anything needs it.
  bool may_update_next() {
    const auto keeps = [this](std::uint32_t unit) { return player().keeps(unit); };
    return order_.may_update_next(keeps) && player().reduced(order_.next());
  }
  /// True if update_ahead() would do anything now.
  bool may_update_ahead() {
    if (order_.phase() == UpdatePhase::Idle) return false;
    auto& ring = player().ring();
    return ring.may_give_back() || ring.may_read_on() || (may_update_next() && ring.may_advance());
  }
  /// Returns borrowed memory, updates the next units as long as nothing must be waited for, and
  /// reads ahead. Under backward it updates units with final gradients, later units whose slots
  /// exist and will stay. So the bytes of a step do not depend on when this is called. Errors: as
  /// update_up_to.
  Result<void> update_ahead() {
    if (order_.phase() == UpdatePhase::Idle) return {};
    auto& ring = player().ring();
    ARTESIAN_TRY_VOID(ring.give_back_borrowed());
    while (may_update_next() && ring.may_advance()) {
      ARTESIAN_TRY(all, ring.advance_within(order_.next()));
      if (!all) return {};
      ARTESIAN_TRY_VOID(has_updated());
    }
    return ring.may_read_on() ? ring.read_on() : Result<void>();
  }
  /// Updates a unit and all before it in the order, unless done already. Errors: the ring's and the
  /// player's.
  Result<void> update_up_to(std::uint32_t unit) {
    while (order_.demands(unit)) ARTESIAN_TRY_VOID(update_next());
    return {};
  }
  /// Updates the rest; afterwards no transfer is in flight. Errors: as update_up_to.
  Result<void> finish_step() {
    if (!step_under_way()) return {};
    while (order_.some_left()) ARTESIAN_TRY_VOID(update_next());
    order_.finish();
    return player().drain();
  }

  const UpdateOrder& order() const noexcept { return order_; }

 protected:
  explicit UpdateFlow(const Placement& placement) : placement_(placement), order_(placement) {}
  ~UpdateFlow() = default;

  /// Called when all gradients are final. Updates the rest of begin_ahead's units; `fixed()` then
  /// tells the player the step's constants. Begins the update of all other units, and updates the
  /// units that a separate device updates by itself. Errors: as update_up_to.
  template <typename Fixed>
  Result<void> defer(const Fixed& fixed) {
    ARTESIAN_CHECK(!step_under_way());
    player().lend(false);  // forward will soon need all memory
    if (under_backward()) {
      while (order_.finals().size() < order_.ahead().size()) {
        gradient_is_final(order_.ahead()[order_.finals().size()]);
      }
      while (order_.updated().size() < order_.ahead().size()) ARTESIAN_TRY_VOID(update_next());
      if (speculative()) player().shadows(Shadows::Commit);
    }
    ARTESIAN_TRY_VOID(player().settle());
    fixed();
    if (placement_.measures) ARTESIAN_TRY_VOID(player().measure());
    for (const std::uint32_t unit : order_.trained()) {
      if (!order_.is_ahead(unit)) player().fix(unit);
      if (!placement_.units[unit].updated_on_device()) continue;
      ARTESIAN_TRY_VOID(player().update_on_device(unit));
    }
    player().count_updates();
    const bool reads = order_.begin_deferred();
    for (const std::uint32_t unit : order_.left()) player().begin_refresh(unit);
    if (!reads) ARTESIAN_TRY_VOID(player().begin_pass());
    // Not if a parameter would then be read again: may_update_next. Copies to a separate device
    // fill a slot from beginning to end: a slot evicted in between would lack its first part.
    if (!player().separate()) {
      player().ring().allow_out_of_turn(
          [this](std::uint32_t unit) { return player().keeps(unit); });
    }
    return reads ? player().ring().read_on() : Result<void>();
  }

 private:
  Player& player() noexcept { return static_cast<Player&>(*this); }
  Result<void> has_updated() {
    const std::uint32_t unit = order_.next();
    order_.update_next();
    return player().end_refresh(unit);
  }
  Result<void> update_next() {
    ARTESIAN_TRY_VOID(player().ring().advance_past(order_.next()));
    return has_updated();
  }

  const Placement& placement_;
  UpdateOrder order_;
};

}  // namespace artesian::zero3
