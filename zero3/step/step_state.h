// The states of a training step, and the table of calls that are legal in each. The previous step's
// pending update is not part of this: it is independent of the open step, and later calls complete
// it, never drop it.
//
//   Unfilled ── initialize ──▶ Ready ── begin_forward ──▶ Forward ── end_forward ──▶ AwaitsBackward
//                               ▲ ▲                         ▲                            │
//                               │ └── step ── Full ◀──┐     │                 begin_backward
//                               │                     │     │                            ▼
//                               └─── step ──── Accumulated ─┘◀──── end_backward ───── Backward
//
// The step's last backward ends in Full, or in Begun if it has begun an update that cannot be
// rolled back. From Full begin_again leads back to AwaitsBackward. A pass that was interrupted
// leaves Broken until abandon_step().
#pragma once

#include <cstddef>
#include <cstdint>

namespace artesian::zero3 {

enum class StepState : std::uint8_t {
  Unfilled,        // no weights yet
  Ready,           // no micro-batch of the next step has begun
  Forward,         // a forward is under way
  AwaitsBackward,  // a forward has ended, and its backward not begun
  Backward,        // its backward is under way
  Accumulated,     // some micro-batches are done, and more may follow
  Full,            // all micro-batches are done
  Begun,           // as Full, and an update has begun that cannot be rolled back
  Broken,          // a pass was interrupted and left partial gradients
  EndedWhole,      // a step that is not finite ended the run; the weights are those from before it
  Failed,          // an error ended the run
  Closed,
};
inline constexpr std::size_t step_states = 12;

enum class StepCall : std::uint8_t {
  Initialize,
  BeginForward,
  EndForward,
  BeginBackward,
  EndBackward,
  BeginAgain,
  Step,
  FinishUpdate,
  Evaluate,
  ReadState,
  WriteState,
  AbandonStep,
  ExpectSave,
  Save,
  Load,
};
inline constexpr std::size_t step_calls = 15;

/// True if the call is legal in this state. Close, which is always legal, has no row.
constexpr bool is_legal(StepState state, StepCall call) noexcept {
  using S = StepState;
  const auto is_one_of = [state](auto... allowed) { return ((state == allowed) || ...); };
  switch (call) {
    case StepCall::Initialize: return is_one_of(S::Unfilled);
    case StepCall::BeginForward: return is_one_of(S::Ready, S::Accumulated);
    case StepCall::EndForward: return is_one_of(S::Forward);
    case StepCall::BeginBackward: return is_one_of(S::AwaitsBackward);
    case StepCall::EndBackward: return is_one_of(S::Backward);
    case StepCall::BeginAgain: return is_one_of(S::Full);
    case StepCall::Step: return is_one_of(S::Accumulated, S::Full, S::Begun);
    case StepCall::FinishUpdate:
      return is_one_of(S::Ready, S::AwaitsBackward, S::Accumulated, S::Full, S::Begun);
    case StepCall::Evaluate: return is_one_of(S::Ready, S::AwaitsBackward, S::Accumulated, S::Full);
    case StepCall::ReadState:
      return is_one_of(S::Ready, S::AwaitsBackward, S::Accumulated, S::Full, S::EndedWhole);
    case StepCall::WriteState: return is_one_of(S::Ready, S::Accumulated, S::Full);
    case StepCall::AbandonStep:
      return is_one_of(S::Ready, S::Forward, S::AwaitsBackward, S::Backward, S::Accumulated,
                       S::Full, S::Broken);
    case StepCall::ExpectSave: return is_one_of(S::Ready, S::AwaitsBackward, S::Accumulated);
    case StepCall::Save: return is_one_of(S::Ready);
    case StepCall::Load: return is_one_of(S::Unfilled, S::Ready);
  }
  return false;
}
static_assert(!is_legal(StepState::Unfilled, StepCall::BeginForward));
static_assert(!is_legal(StepState::AwaitsBackward,
                        StepCall::BeginForward));  // its graph is still needed
static_assert(!is_legal(StepState::Full, StepCall::BeginForward));
static_assert(!is_legal(StepState::Begun,
                        StepCall::Evaluate));  // some weights already have the step's update
static_assert(!is_legal(StepState::Begun, StepCall::AbandonStep));
static_assert(!is_legal(StepState::Broken, StepCall::Step));
static_assert(!is_legal(StepState::Accumulated,
                        StepCall::Save));  // gradients are not part of the state
static_assert(!is_legal(StepState::Failed, StepCall::ReadState));
static_assert(!is_legal(StepState::Closed, StepCall::AbandonStep));

/// True if the state has no way out but Closed.
constexpr bool is_end(StepState state) noexcept {
  return state == StepState::EndedWhole || state == StepState::Failed || state == StepState::Closed;
}

}  // namespace artesian::zero3
