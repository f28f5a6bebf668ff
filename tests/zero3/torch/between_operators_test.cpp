// Proves when BetweenOperators calls: before the operators of its own thread, but not before
// operators of the work itself, of other threads, or after its end.
#include "zero3/torch/between_operators.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace artesian::zero3 {
namespace {

void run_an_operator() {
  EXPECT_EQ(at::ones({2}).add(1).numel(), 2);
}

TEST(BetweenOperators, CallsBeforeTheOperatorsOfItsThread) {
  int calls = 0;
  const std::function<void()> work = [&] {
    ++calls;
    run_an_operator();  // which is not counted
  };
  {
    const BetweenOperators between(work);
    EXPECT_EQ(calls, 0);
    run_an_operator();
    EXPECT_GE(calls, 2);  // ones, add
    const int before = calls;
    std::thread(run_an_operator).join();
    EXPECT_EQ(calls, before);
    const std::function<void()> nothing;
    {
      const BetweenOperators inner(nothing);
      run_an_operator();
    }
    EXPECT_GT(calls, before);
  }
  const int before = calls;
  run_an_operator();
  EXPECT_EQ(calls, before);
}

TEST(BetweenOperators, OfAnInnerScopeEndWithIt) {
  int outer_calls = 0;
  int inner_calls = 0;
  const std::function<void()> outer_work = [&] { ++outer_calls; };
  const std::function<void()> inner_work = [&] { ++inner_calls; };
  const BetweenOperators outer(outer_work);
  {
    const BetweenOperators inner(inner_work);
    run_an_operator();
  }
  EXPECT_EQ(outer_calls, 0);
  EXPECT_GE(inner_calls, 2);
  const int before = inner_calls;
  run_an_operator();
  EXPECT_EQ(inner_calls, before);
  EXPECT_GE(outer_calls, 2);
}

}  // namespace
}  // namespace artesian::zero3
