// The states of a training step, and the one table of which call is legal in which of them. An
// update that the step before has begun is no part of this: it is pending beside whatever step is
// open, and is completed, never dropped, by what comes next.
//
//   Unfilled ── initialize ──▶ Ready ── begin_forward ──▶ Forward ── end_forward ──▶ AwaitsBackward
//                               ▲ ▲                         ▲                            │
//                               │ └── step ── Full ◀──┐     │                 begin_backward
//                               │                     │     │                            ▼
//                               └─── step ──── Accumulated ─┘◀──── end_backward ───── Backward
//
// The step's last backward ends in Full, or in Begun where it has begun an update that cannot be
// taken back. A pass that broke off in the middle is Broken until abandon_step().
#pragma once

#include <cstddef>
#include <cstdint>

namespace artesian::zero3 {

enum class StepState : std::uint8_t {
  Unfilled,        // no weights yet
  Ready,           // no micro-batch of the next step has begun
  Forward,         // a forward is under way
  AwaitsBackward,  // forward has ended
  Backward,        // its backward is under way
  Accumulated,     // some micro-batches are done, and more may follow
  Full,            // the last one is done
  Begun,           // as Full, and an update has begun that cannot be rolled back
  Broken,          // a pass broke off and left partial gradients
  EndedWhole,      // a step that is not finite ended the run; the weights are those before it
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
inline constexpr std::size_t step_calls = 14;

/// True if the call is in order. Close, which is always, has no row.
constexpr bool is_legal(StepState state, StepCall call) noexcept {
  using S = StepState;
  const auto is_one_of = [state](auto... allowed) { return ((state == allowed) || ...); };
  switch (call) {
    case StepCall::Initialize: return is_one_of(S::Unfilled);
    case StepCall::BeginForward: return is_one_of(S::Ready, S::Accumulated);
    case StepCall::EndForward: return is_one_of(S::Forward);
    case StepCall::BeginBackward: return is_one_of(S::AwaitsBackward);
    case StepCall::EndBackward: return is_one_of(S::Backward);
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
static_assert(!is_legal(StepState::AwaitsBackward, StepCall::BeginForward));  // its graph waits
static_assert(!is_legal(StepState::Full, StepCall::BeginForward));
static_assert(!is_legal(StepState::Begun, StepCall::Evaluate));  // weights of two steps
static_assert(!is_legal(StepState::Begun, StepCall::AbandonStep));
static_assert(!is_legal(StepState::Broken, StepCall::Step));
static_assert(!is_legal(StepState::Accumulated, StepCall::Save));  // gradients are no state
static_assert(!is_legal(StepState::Failed, StepCall::ReadState));
static_assert(!is_legal(StepState::Closed, StepCall::AbandonStep));

/// True if the state has no way out but Closed.
constexpr bool is_end(StepState state) noexcept {
  return state == StepState::EndedWhole || state == StepState::Failed || state == StepState::Closed;
}

}  // namespace artesian::zero3
