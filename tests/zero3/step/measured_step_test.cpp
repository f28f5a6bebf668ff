// Proves which step is measured: the first complete one that has the disk for itself.
#include "zero3/step/measured_step.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

StepResult result_of(std::uint64_t step) {
  StepResult result;
  result.step = step;
  return result;
}

TEST(MeasuredStep, IsTheFirstBehindOneThatWasUpdated) {
  MeasuredStep measured;
  measured.end_step(1, true, 1.0);
  measured.complete(result_of(1), true);
  measured.end_step(2, false, 2.0);
  measured.end_step(3, true, 3.0);
  measured.complete(result_of(3), true);
  EXPECT_FALSE(measured.step().has_value());
  measured.end_step(4, true, 4.0);
  EXPECT_FALSE(measured.step().has_value());  // its update is pending
  measured.complete(result_of(4), true);
  measured.end_step(5, true, 5.0);
  measured.complete(result_of(5), true);
  ASSERT_TRUE(measured.step().has_value());
  EXPECT_EQ(measured.step()->step, 4u);
  EXPECT_EQ(measured.backward_s(), 4.0);
}

TEST(MeasuredStep, IsAnotherWhereACheckpointUsedTheDisk) {
  MeasuredStep measured;
  measured.end_step(1, true, 1.0);
  measured.end_step(2, true, 2.0);
  measured.complete(result_of(2), false);
  EXPECT_FALSE(measured.step().has_value());
  measured.end_step(3, true, 3.0);
  measured.complete(result_of(3), true);
  ASSERT_TRUE(measured.step().has_value());
  EXPECT_EQ(measured.step()->step, 3u);
  EXPECT_EQ(measured.backward_s(), 3.0);
}

}  // namespace
}  // namespace artesian::zero3
