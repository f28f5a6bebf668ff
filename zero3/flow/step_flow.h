// StepFlow: the order in which a training step calls the prefetcher, gradients and the update. A
// Player derives from it: StepCore (step/step_core.h), or the plan's rehearsal
// (plan/rehearsal.cpp). A Player has:
//
//   auto& prefetcher();  auto& update();  auto& under_backward();   the last two: update_flow.h,
//                                                                   under_backward_flow.h
//   Result<void> update_before_use(unit);    UpdateFlow::update_up_to
//   Result<void> gather_shares(units);       gathers the other ranks' shares of their parameters,
//   and
//                                            begins to gather those of the next access
//   Result<void> settle_shares();            waits for what has begun
//   Result<void> finish_pending();           UpdateFlow::finish_step
//   Result<void> gradients_are_added(stage); of the stage, from all micro-batches of the group
//   Result<void> update_final(stage);        UnderBackwardFlow::accumulated
//   Result<void> complete_gradients();       adds late gradients, and zeros where there was none
#pragma once

#include <cstddef>

#include "base/result.h"

namespace artesian::zero3 {

/// What happens to a step whose gradients are known.
struct StepVerdict {
  bool as_begun = true;  // the update is the one begun under backward
  bool skipped = false;  // the step makes no update
  bool ends = false;     // the run ends with this step
};

template <typename Player>
class StepFlow {
 protected:
  ~StepFlow() = default;

  /// Gathers the units of an access, and applies their pending update. Errors, here and below: the
  /// player's.
  template <typename Units>
  Result<void> enter_units(const Units& units) {
    ARTESIAN_TRY_VOID(player().settle_shares());  // gathering pins slots, which may be in the way
    ARTESIAN_TRY_VOID(player().prefetcher().enter(units));
    for (const auto unit : units) ARTESIAN_TRY_VOID(player().update_before_use(unit));
    return player().gather_shares(units);
  }
  /// Completes the pending update, as the end of forward and all readers of weights do. If the
  /// step's update is not final yet, rolls back its speculative part.
  Result<void> complete_update() {
    // The rollback may write to a slot that is being fetched.
    if (player().update().speculative()) ARTESIAN_TRY_VOID(player().prefetcher().stop_fetching());
    ARTESIAN_TRY_VOID(player().under_backward().take_back());
    return player().finish_pending();
  }
  /// Called when all gradients of a stage are added: updates units with final gradients under
  /// backward.
  Result<void> end_stage(std::size_t stage) {
    ARTESIAN_TRY_VOID(player().gradients_are_added(stage));
    player().update().stage_is_done();
    return player().update().under_backward() ? player().update_final(stage) : Result<void>();
  }
  /// Ends a step, after its last backward. `judge()` computes the norm and returns a verdict;
  /// `begin_update()` fixes the update that the next forward applies.
  template <typename End, typename Judge, typename Begin>
  Result<void> end_step(End end, const Judge& judge, const Begin& begin_update) {
    ARTESIAN_TRY_VOID(player().complete_gradients());
    ARTESIAN_TRY_VOID(player().prefetcher().end_step(end));
    ARTESIAN_TRY(verdict, judge());
    ARTESIAN_TRY_VOID(player().under_backward().judged(verdict.as_begun, verdict.skipped));
    if (!verdict.skipped) ARTESIAN_TRY_VOID(begin_update());
    return verdict.ends ? Result<void>() : player().prefetcher().look_ahead_to_next_step();
  }

 private:
  Player& player() noexcept { return static_cast<Player&>(*this); }
};

}  // namespace artesian::zero3
