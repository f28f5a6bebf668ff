// Proves the table of legal calls: each state accepts exactly these, final states accept only calls
// that still may read, and every other state has a legal call that leaves it.
#include "zero3/step/step_state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace artesian::zero3 {
namespace {

using S = StepState;
using C = StepCall;

TEST(StepState, EachStateLetsThroughExactlyTheseCalls) {
  const std::map<S, std::set<C>> legal = {
      {S::Unfilled, {C::Initialize, C::Load}},
      {S::Ready,
       {C::BeginForward, C::FinishUpdate, C::Evaluate, C::ReadState, C::WriteState, C::AbandonStep,
        C::ExpectSave, C::Save, C::Load}},
      {S::Forward, {C::EndForward, C::AbandonStep}},
      {S::AwaitsBackward,
       {C::BeginBackward, C::FinishUpdate, C::Evaluate, C::ReadState, C::AbandonStep,
        C::ExpectSave}},
      {S::Backward, {C::EndBackward, C::AbandonStep}},
      {S::Accumulated,
       {C::BeginForward, C::Step, C::FinishUpdate, C::Evaluate, C::ReadState, C::WriteState,
        C::AbandonStep, C::ExpectSave}},
      {S::Full,
       {C::BeginAgain, C::Step, C::FinishUpdate, C::Evaluate, C::ReadState, C::WriteState,
        C::AbandonStep}},
      {S::Begun, {C::Step, C::FinishUpdate}},
      {S::Broken, {C::AbandonStep}},
      {S::EndedWhole, {C::ReadState}},
      {S::Failed, {}},
      {S::Closed, {}},
  };
  ASSERT_EQ(legal.size(), step_states);
  for (const auto& [state, calls] : legal) {
    for (std::size_t index = 0; index < step_calls; ++index) {
      const auto call = static_cast<C>(index);
      EXPECT_EQ(is_legal(state, call), calls.contains(call))
          << "state " << static_cast<int>(state) << ", call " << index;
    }
  }
}

TEST(StepState, OnlyEndsHaveNoWayOut) {
  for (std::size_t index = 0; index < step_states; ++index) {
    const auto state = static_cast<S>(index);
    bool leads_on = false;
    for (std::size_t call = 0; call < step_calls; ++call) {
      leads_on = leads_on ||
                 (static_cast<C>(call) != C::ReadState && is_legal(state, static_cast<C>(call)));
    }
    EXPECT_EQ(leads_on, !is_end(state)) << index;
  }
}

}  // namespace
}  // namespace artesian::zero3
