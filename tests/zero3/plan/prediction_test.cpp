// Proves the prediction of a step on made-up disks and phases. Folders of one disk add up, and
// disks work side by side. A phase takes the longer of its computing and its bytes. The first step,
// which has no update, gets one added; a later step without one does not change what is expected of
// those that have. Time beyond that is expected once it has occurred twice.
#include "zero3/plan/prediction.h"

#include <gtest/gtest.h>

#include <cmath>

namespace artesian::zero3 {
namespace {

using tiering::PathBytes;
using tiering::PathDisk;

constexpr std::uint64_t gb = 1'000'000'000;
const PathDisk disk{.speed = {.read_bytes_per_s = 2e9, .write_bytes_per_s = 1e9}, .device = 1};
const PathDisk faster{.speed = {.read_bytes_per_s = 8e9, .write_bytes_per_s = 4e9}, .device = 2};

double seconds(const std::vector<PathDisk>& disks, const std::vector<PathBytes>& bytes) {
  return disk_seconds(disks, bytes);
}

TEST(DiskSeconds, ADiskReadsAndWritesInTurn) {
  EXPECT_DOUBLE_EQ(seconds({disk}, {{4 * gb, 3 * gb}}), 5.0);
  EXPECT_EQ(seconds({}, {}), 0.0);
}

TEST(DiskSeconds, DisksWorkSideBySideAndTheLastCounts) {
  EXPECT_DOUBLE_EQ(seconds({disk, faster}, {{4 * gb, 0}, {4 * gb, 0}}), 2.0);
  EXPECT_DOUBLE_EQ(seconds({disk, faster}, {{gb, 0}, {8 * gb, 4 * gb}}), 2.0);
}

TEST(DiskSeconds, FoldersOfOneDiskShareIt) {
  PathDisk beside = faster;  // measured at another time
  beside.device = disk.device;
  EXPECT_DOUBLE_EQ(seconds({disk, beside}, {{4 * gb, 0}, {4 * gb, 0}}), 2.5);
  EXPECT_DOUBLE_EQ(seconds({disk, beside, faster}, {{4 * gb, 0}, {4 * gb, 0}, {0, 8 * gb}}), 2.5);
}

TEST(DiskSeconds, WhatIsNotKnownCountsForNothing) {
  EXPECT_DOUBLE_EQ(seconds({{}, disk}, {{gb, gb}, {2 * gb, 0}}), 1.0);
}

TEST(DivideOverPaths, RecordsAndTheRestGoWhereTheirSharesSay) {
  MovedByKind moved;
  moved.param = {.nvme_read = 100, .nvme_write = 40};
  moved.grad = {.nvme_read = 20, .nvme_write = 0};
  moved.input = {.nvme_read = 0, .nvme_write = 8};
  moved.optimizer = {.nvme_read = 1000, .nvme_write = 500};
  const std::vector<tiering::PathShare> param{{.path = 2, .share = 0.75, .speed = {}},
                                              {.path = 0, .share = 0.25, .speed = {}}};
  const std::vector<tiering::PathShare> optimizer{{.path = 1, .share = 1.0, .speed = {}}};
  const auto bytes = divide_over_paths(moved, param, optimizer, 3);
  ASSERT_EQ(bytes.size(), 3u);
  EXPECT_EQ(bytes[0].read, 30u);
  EXPECT_EQ(bytes[0].written, 12u);
  EXPECT_EQ(bytes[1].read, 1000u);
  EXPECT_EQ(bytes[1].written, 500u);
  EXPECT_EQ(bytes[2].read, 90u);
  EXPECT_EQ(bytes[2].written, 36u);
  EXPECT_TRUE(divide_over_paths({}, {}, {}, 0).empty());
}

TEST(Prediction, NothingIsKnownBeforeTheFirstStep) {
  Prediction prediction({disk});
  EXPECT_TRUE(std::isnan(prediction.next_s()));
  prediction.begin_step(false);
  prediction.end_phase({.seconds = 3.0, .waited_s = 1.0, .bytes = {{}}});
  EXPECT_TRUE(std::isnan(prediction.next_s()));
}

TEST(Prediction, APhaseTakesTheLongerOfItsWorkAndItsBytes) {
  Prediction prediction({disk});
  prediction.begin_step(true);
  prediction.end_phase(
      {.updates = true, .seconds = 5.0, .waited_s = 1.0, .bytes = {{2 * gb, gb}}});  // 4 and 2
  prediction.end_phase({.seconds = 1.2, .waited_s = 0.7, .bytes = {{2 * gb, 0}}});   // 0.5 and 1
  EXPECT_DOUBLE_EQ(prediction.computed_s(), 4.5);
  EXPECT_DOUBLE_EQ(prediction.disk_s(), 3.0);
  prediction.end_step(std::vector<PathBytes>(1));
  EXPECT_DOUBLE_EQ(prediction.next_s(), 5.0);
  prediction.begin_step(true);
  EXPECT_EQ(prediction.computed_s(), 0.0);
  EXPECT_EQ(prediction.disk_s(), 0.0);
  EXPECT_DOUBLE_EQ(prediction.next_s(), 5.0);  // until this one has ended
}

TEST(Prediction, TheFirstStepIsGivenTheUpdateThatItLacked) {
  Prediction prediction({disk});
  prediction.begin_step(false);
  prediction.end_phase({.seconds = 2.0, .waited_s = 0.5, .bytes = {{gb, 0}}});
  prediction.end_step(std::vector<PathBytes>{{2 * gb, 2 * gb}});
  EXPECT_DOUBLE_EQ(prediction.next_s(), 1.5 + 3.0);
  prediction.begin_step(false);  // a step was skipped: those after the next are as before
  prediction.end_phase({.seconds = 9.0, .waited_s = 0.0, .bytes = {{}}});
  prediction.end_step(std::vector<PathBytes>(1));
  EXPECT_DOUBLE_EQ(prediction.next_s(), 4.5);
}

/// One step that carries an update, of two phases.
double next_after(Prediction& prediction, const PhaseUse& forward, const PhaseUse& rest) {
  prediction.begin_step(true);
  prediction.end_phase(forward);
  prediction.end_phase(rest);
  prediction.end_step(std::vector<PathBytes>(1));
  return prediction.next_s();
}

TEST(Prediction, ADiskThatIsWaitedForTellsItsSpeed) {
  Prediction prediction({disk});
  const PhaseUse slow{
      .updates = true, .seconds = 8.0, .waited_s = 7.0, .bytes = {{4 * gb, 2 * gb}}};
  const PhaseUse rest{
      .seconds = 3.0, .waited_s = 0.5, .bytes = {{4 * gb, 0}}};  // 2.5 computed, and 2 of the disk
  // At half of the probed rate. The rest is assumed to be as slow until it is measured: 4 instead
  // of 2.
  EXPECT_DOUBLE_EQ(next_after(prediction, slow, rest), 8.0 + 4.0);
  EXPECT_DOUBLE_EQ(prediction.disk_s(), 4.0 + 2.0);  // the bound keeps the probed rate
  const PhaseUse waiting{.seconds = 2.5, .waited_s = 2.0, .bytes = {{4 * gb, 0}}};
  EXPECT_DOUBLE_EQ(next_after(prediction, slow, waiting), 8.0 + 2.5);
  // The best rate counts, also if the next one is slower.
  const PhaseUse slower{
      .updates = true, .seconds = 9.0, .waited_s = 8.0, .bytes = {{4 * gb, 2 * gb}}};
  EXPECT_DOUBLE_EQ(next_after(prediction, slower, waiting), 8.0 + 2.5);
}

TEST(Prediction, AWaitThatComesBackIsExpectedAgain) {
  Prediction prediction({disk});
  const auto forward = [](double waited) {  // 3 computed, and 1 of disk
    return PhaseUse{
        .updates = true, .seconds = 3.0 + waited, .waited_s = waited, .bytes = {{2 * gb, 0}}};
  };
  const PhaseUse rest{.seconds = 2.0, .bytes = {{0, 0}}};
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.75), rest), 5.0);  // it may be chance
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.25), rest), 5.25);
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.5), rest), 5.25);
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.5), rest), 5.25);
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.5), rest), 5.5);  // the second was long ago
  EXPECT_DOUBLE_EQ(next_after(prediction, forward(0.0), rest), 5.0);
  // A phase that its bytes explain takes no further time.
  Prediction bound({disk});
  const PhaseUse bytes{
      .updates = true, .seconds = 4.0, .waited_s = 2.0, .bytes = {{4 * gb, 2 * gb}}};
  for (int step = 0; step < 3; ++step) {
    EXPECT_DOUBLE_EQ(next_after(bound, bytes, rest), 6.0);
  }
}

TEST(Prediction, TheFirstUpdateIsExpectedAtTheSpeedOfTheFirstStep) {
  Prediction prediction({disk});
  prediction.begin_step(false);
  prediction.end_phase({.seconds = 4.0, .waited_s = 3.5, .bytes = {{4 * gb, 0}}});  // half of it
  prediction.end_step(std::vector<PathBytes>{{2 * gb, 2 * gb}});
  EXPECT_DOUBLE_EQ(prediction.next_s(), 4.0 + 6.0);
}

}  // namespace
}  // namespace artesian::zero3
