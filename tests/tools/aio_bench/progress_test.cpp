// Proves that the bar of a long measurement shows the figure that a user waits for however narrow
// the terminal is, and is never wider.
#include "tools/aio_bench/progress.h"

#include <gtest/gtest.h>

namespace artesian::bench {
namespace {

const ProgressLine line{.stage = "block size for depth",
                        .gone_s = 15,
                        .left_s = 45,
                        .rate = "12.95 GB/s",
                        .detail = "512 KiB x 128 x 1, io_uring: mixed"};

TEST(ProgressLine, HasTheRateAtEightyColumnsAndLess) {
  EXPECT_EQ(
      fitted(line, 80).find("[###.........]  25%  45 s left  block size for depth  12.95 GB/s  5"),
      0u)
      << fitted(line, 80);
  EXPECT_NE(fitted(line, 60).find("12.95 GB/s"), std::string::npos) << fitted(line, 60);
  EXPECT_EQ(fitted(line, 120).find("[######..................]"), 0u);
  EXPECT_NE(fitted(line, 120).find("io_uring: mixed"), std::string::npos);
}

TEST(ProgressLine, FitsAndLeavesTheLastColumnFree) {
  for (const std::size_t columns : {1u, 20u, 69u, 70u, 80u, 109u, 110u, 300u}) {
    EXPECT_LE(fitted(line, columns).size(), std::max<std::size_t>(columns, 2) - 1);
  }
}

TEST(ProgressLine, OfNothingKnownIsAtItsBeginning) {
  const ProgressLine nothing{.stage = "writing", .rate = {}, .detail = {}};
  EXPECT_NE(fitted(nothing, 80).find("  0%   0 s left  writing"), std::string::npos);
}

}  // namespace
}  // namespace artesian::bench
