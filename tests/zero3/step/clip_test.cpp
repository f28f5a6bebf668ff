// Proves the clip factor at its edges: off, below, at and above the limit, and that the bound by
// which an update under backward gives up agrees with it at any loss scale.
#include "zero3/step/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace artesian::zero3 {
namespace {

TEST(Clip, DividesWhatExceedsTheLimitAndNothingElse) {
  EXPECT_EQ(clip_divisor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_divisor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_divisor(3.0, 2.0), (3.0 + 1e-6) / 2.0);
  EXPECT_EQ(clip_divisor(1.0, 1.0), 1.0 + 1e-6);  // DeepSpeed's, too
}

TEST(Clip, IsOffAtZeroAndBelow) {
  for (const double clipping : {0.0, -1.0}) {
    EXPECT_EQ(clip_divisor(1e30, clipping), 1.0);
    EXPECT_EQ(sum_squares_unclipped(clipping, 65536.0), std::numeric_limits<double>::infinity());
  }
}

TEST(Clip, TheBoundOfSquaresIsThatOfTheFactorAtAnyLossScale) {
  for (const double scale : {1.0, 1024.0, 65536.0}) {
    const double bound = sum_squares_unclipped(2.5, scale);
    const double above = std::sqrt(bound * 1.001) / scale;
    const double below = std::sqrt(bound * 0.999) / scale;
    EXPECT_GT(clip_divisor(above, 2.5), 1.0) << scale;
    EXPECT_EQ(clip_divisor(below, 2.5), 1.0) << scale;
  }
}

}  // namespace
}  // namespace artesian::zero3
