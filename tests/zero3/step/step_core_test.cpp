// Proves what every driver of StepCore may rely on, with one that has no tensors: gradients are
// numbers of a counter. A step that is abandoned at any point leaves no trace in any bit. A step
// may have fewer micro-batches than the configuration says. A learning rate given to step()
// applies, even if the update began with another one. Each call in each state is accepted or
// refused as the table says, and a refused one changes nothing.
#include "zero3/step/step_core.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

std::vector<Case> runs() {
  std::vector<Case> runs;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const double clipping : {0.0, 0.001, 1e6}) {
      for (const bool speculative : {false, true}) {
        runs.push_back({.dtype = dtype, .clipping = clipping, .speculative = speculative});
      }
    }
  }
  return runs;
}

TEST(StepCore, AStepThatIsAbandonedLeavesNoTrace) {
  const std::vector<std::function<void(Driver&)>> attempts = {
      [](Driver&) {},
      [](Driver& d) {
        EXPECT_EQ(error_of(d.core->begin_forward(1)), "");
        d.enter_forward(2, /*leave_last=*/false);
      },
      [](Driver& d) { d.forward(); },
      [](Driver& d) {
        d.forward();
        EXPECT_EQ(error_of(d.core->begin_backward()), "");
        d.add_gradients(99, 2);
        d.core->break_pass();
        EXPECT_NE(error_of(d.core->step()).find("call abandon_step() first"), std::string::npos);
      },
      [](Driver& d) { d.micro_batch(98); },
      [](Driver& d) {  // in the last backward, which may have begun an update
        d.micro_batch(97);
        d.forward();
        EXPECT_EQ(error_of(d.core->begin_backward()), "");
        d.add_gradients(96, 3);
      },
      [](Driver& d) {
        d.micro_batch(95);
        d.micro_batch(94);
      },
  };
  for (const Case& run : runs()) {
    Driver plain(run);
    plain.fill();
    Driver tried(run);
    tried.fill();
    std::uint64_t number = 0;
    for (const auto& attempt : attempts) {
      attempt(tried);
      ASSERT_EQ(error_of(tried.core->abandon_step()), "");
      EXPECT_EQ(tried.core->micro_batches(), 0u);
      plain.step(number);
      tried.step(number++);
    }
    EXPECT_EQ(tried.norms, plain.norms);
    EXPECT_EQ(tried.digest(), plain.digest())
        << dtype_name(run.dtype) << " " << run.clipping << " " << run.speculative;
  }
}

TEST(StepCore, ABadLossOfAStepThatIsAbandonedIsForgotten) {
  Driver plain({});
  plain.fill();
  plain.step(0);
  Driver tried({});
  tried.fill();
  ASSERT_EQ(error_of(tried.core->begin_forward(1)), "");
  tried.enter_forward(tried.stages().size());
  const double bad[] = {std::numeric_limits<double>::quiet_NaN()};
  ASSERT_EQ(error_of(tried.core->end_forward(bad)), "");
  tried.backward(50);
  ASSERT_EQ(error_of(tried.core->abandon_step()), "");
  EXPECT_FALSE(tried.step(0).overflow);
  EXPECT_EQ(tried.digest(), plain.digest());
}

TEST(StepCore, AnUpdateThatBeganForGoodCannotBeAbandoned) {
  Driver driver({.dtype = DType::BFloat16, .clipping = 0, .check_overflow = false});
  driver.fill();
  driver.step(0);
  driver.micro_batch(10);
  driver.micro_batch(11);
  const std::string refused = error_of(driver.core->abandon_step());
  EXPECT_NE(refused.find("has begun the update"), std::string::npos) << refused;
  EXPECT_EQ(error_of(driver.core->step()), "");  // it changed nothing

  driver.micro_batch(20);
  driver.forward();
  ASSERT_EQ(error_of(driver.core->begin_backward()), "");
  driver.add_gradients(21, 4);
  driver.core->break_pass();
  const std::string ended = error_of(driver.core->abandon_step());
  EXPECT_NE(ended.find("nothing of it is kept to take it back"), std::string::npos) << ended;
  EXPECT_EQ(error_of(driver.core->step()), ended);  // and that ended the run
}

TEST(StepCore, AStepMayHaveFewerMicroBatches) {
  for (const Case& base : runs()) {
    Case run = base;
    run.accumulation = 3;
    Driver shorter(run);
    shorter.fill();
    Driver padded(run);  // missing micro-batches have gradients of zero
    padded.fill();
    const std::uint64_t counts[] = {3, 1, 3, 2, 3};
    for (std::uint64_t step = 0; step < std::size(counts); ++step) {
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        const bool there = micro < counts[step];
        padded.micro_batch(step * 10 + micro, there ? 1.0 : 0.0);
        if (there) shorter.micro_batch(step * 10 + micro, 1.0, {.last = micro + 1 == counts[step]});
      }
      const auto expected = padded.core->step();
      ASSERT_EQ(error_of(expected), "");
      if (counts[step] != 3) {
        const std::string refused = error_of(shorter.core->step());
        EXPECT_NE(refused.find("allowed 3"), std::string::npos) << refused;
      }
      const auto got = shorter.core->step({.micro_batches = counts[step]});
      ASSERT_EQ(error_of(got), "");
      EXPECT_EQ(got->grad_norm, expected->grad_norm);
      EXPECT_EQ(got->tokens, 4 * counts[step]);
    }
    EXPECT_EQ(shorter.digest(), padded.digest()) << dtype_name(run.dtype) << " " << run.clipping;
  }
}

TEST(StepCore, TheLearningRateOfTheStepIsTheOneThatCounts) {
  for (Case run : runs()) {
    run.learning_rate = 0.5;
    Driver configured(run);
    configured.fill();
    run.learning_rate = 1e-2;
    Driver told(run);
    told.fill();
    for (std::uint64_t step = 0; step < 4; ++step) {
      configured.step(step);
      told.micro_batch(step * 10);
      // Every second time backward knows it, too.
      BackwardRequest request;
      if (step % 2 == 0) request.learning_rate = 0.5;
      told.micro_batch(step * 10 + 1, 1.0, request);
      const auto result = told.core->step({.learning_rate = 0.5});
      ASSERT_EQ(error_of(result), "");
      EXPECT_EQ(result->lr, 0.5);
      told.taken_back += result->taken_back;
    }
    EXPECT_EQ(told.digest(), configured.digest()) << dtype_name(run.dtype) << " " << run.clipping;
    if (run.clipping != 1e6 || !run.speculative) continue;
    EXPECT_GT(told.taken_back, configured.taken_back);
  }
}

TEST(StepCore, ALearningRateThatComesTooLateIsAnErrorThatChangesNothing) {
  const Case run{.dtype = DType::BFloat16, .clipping = 0, .check_overflow = false};
  Driver driver(run);
  driver.fill();
  Driver plain(run);
  plain.fill();
  plain.step(1);
  driver.micro_batch(10);
  driver.micro_batch(11);
  const std::string refused = error_of(driver.core->step({.learning_rate = 0.5}));
  EXPECT_NE(refused.find("give it to backward(), too"), std::string::npos) << refused;
  EXPECT_EQ(error_of(driver.core->step()), "");
  EXPECT_EQ(driver.digest(), plain.digest());
}

/// Forward runs the stages in this order, backward as usual. Returns the bytes that had been
/// written when the second of them was entered.
std::uint64_t written_by_second_stage(Driver& driver, const std::vector<std::size_t>& order) {
  const auto written = [&] { return driver.core->state().store().statistics().bytes_written; };
  const std::uint64_t before = written();
  std::uint64_t second = 0;
  EXPECT_EQ(error_of(driver.core->begin_forward(1)), "");
  for (const std::size_t stage : order) {
    EXPECT_EQ(error_of(driver.core->enter(driver.core->layout().stages[stage])), "");
    if (stage == order[1]) second = written() - before;
    EXPECT_EQ(error_of(driver.core->leave(driver.core->layout().stages[stage])), "");
  }
  const double loss[] = {1.5};
  EXPECT_EQ(error_of(driver.core->end_forward(loss)), "");
  driver.backward(5);
  EXPECT_EQ(error_of(driver.core->step()), "");
  return second;
}

TEST(StepCore, UpdatesComeInTheOrderOfTheFirstForward) {
  const Case run{.clipping = 1e6, .speculative = false, .accumulation = 1};
  const std::vector<std::size_t> as_numbered{0, 1, 2, 3, 4};
  const std::vector<std::size_t> otherwise{0, 3, 2, 1, 4};
  Driver learnt(run);
  Driver numbered(run);
  for (Driver* driver : {&learnt, &numbered}) driver->fill();
  written_by_second_stage(learnt, otherwise);
  written_by_second_stage(numbered, as_numbered);
  const std::uint64_t two = written_by_second_stage(learnt, otherwise);
  const std::uint64_t four = written_by_second_stage(numbered, otherwise);
  EXPECT_GT(two, 0u);
  EXPECT_LT(two, four);  // blocks 0 and 1 are not needed yet
  EXPECT_EQ(learnt.digest(), numbered.digest());
}

TEST(StepCore, EachCallInEachStateIsLetThroughAsTheTableSays) {
  const Case usual;
  const Case for_good{.dtype = DType::BFloat16, .clipping = 0, .check_overflow = false};
  const std::vector<std::pair<StepState, std::function<void(Driver&)>>> ways = {
      {StepState::Unfilled, [](Driver&) {}},
      {StepState::Ready, [](Driver& d) { d.fill(); }},
      {StepState::Forward,
       [](Driver& d) {
         d.fill();
         EXPECT_EQ(error_of(d.core->begin_forward(1)), "");
       }},
      {StepState::AwaitsBackward,
       [](Driver& d) {
         d.fill();
         d.forward();
       }},
      {StepState::Backward,
       [](Driver& d) {
         d.fill();
         d.forward();
         EXPECT_EQ(error_of(d.core->begin_backward()), "");
       }},
      {StepState::Accumulated,
       [](Driver& d) {
         d.fill();
         d.micro_batch(1);
       }},
      {StepState::Full,
       [](Driver& d) {
         d.fill();
         d.micro_batch(1);
         d.micro_batch(2);
       }},
      {StepState::Begun,
       [](Driver& d) {
         d.fill();
         d.micro_batch(1);
         d.micro_batch(2);
       }},
      {StepState::Broken,
       [](Driver& d) {
         d.fill();
         d.forward();
         d.core->break_pass();
       }},
      {StepState::Closed, [](Driver& d) { EXPECT_EQ(error_of(d.core->close()), ""); }},
  };
  for (const auto& [state, way] : ways) {
    for (std::size_t index = 0; index < step_calls; ++index) {
      Driver driver(state == StepState::Begun ? for_good : usual);
      way(driver);
      ASSERT_EQ(driver.core->state_of_step(), state);
      const auto call = static_cast<StepCall>(index);
      const std::string refused = error_of(driver.core->check(call, "it"));
      EXPECT_EQ(refused.empty(), is_legal(state, call)) << static_cast<int>(state) << " " << index;
      EXPECT_EQ(driver.core->state_of_step(), state);
      if (refused.empty() || state == StepState::Closed) continue;
      EXPECT_EQ(refused.rfind("it(): out of order: ", 0), 0u) << refused;
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
