// Proves the prediction of a step on made-up phases: each takes the longer of what was computed in
// it and of its bytes at the disk's speed; the first step's, which carried no update, gets one
// added; and a later one that carried none leaves what is expected of those that do.
#include "zero3/prediction.h"

#include <gtest/gtest.h>

#include <cmath>

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t gb = 1'000'000'000;
const tiering::DiskSpeed disk{.read_bytes_per_s = 2e9, .write_bytes_per_s = 1e9};

TEST(Prediction, ADiskReadsAndWritesInTurn) {
  EXPECT_DOUBLE_EQ(disk_seconds(disk, {.read = 4 * gb, .written = 3 * gb}), 5.0);
  EXPECT_EQ(disk_seconds({}, {}), 0.0);  // nothing moves: no speed is needed
}

TEST(Prediction, NothingIsKnownBeforeTheFirstStep) {
  Prediction prediction(disk);
  EXPECT_TRUE(std::isnan(prediction.next_s()));
  prediction.begin_step(false);
  prediction.end_phase({.seconds = 3.0, .waited_s = 1.0});
  EXPECT_TRUE(std::isnan(prediction.next_s()));
}

TEST(Prediction, APhaseTakesTheLongerOfItsWorkAndItsBytes) {
  Prediction prediction(disk);
  prediction.begin_step(true);
  prediction.end_phase({.seconds = 5.0, .waited_s = 1.0, .bytes = {2 * gb, gb}});  // 4 and 2
  prediction.end_phase({.seconds = 2.0, .waited_s = 1.5, .bytes = {2 * gb, 0}});   // 0.5 and 1
  EXPECT_DOUBLE_EQ(prediction.computed_s(), 4.5);
  EXPECT_DOUBLE_EQ(prediction.disk_s(), 3.0);
  prediction.end_step({});
  EXPECT_DOUBLE_EQ(prediction.next_s(), 5.0);
  prediction.begin_step(true);
  EXPECT_EQ(prediction.computed_s(), 0.0);
  EXPECT_EQ(prediction.disk_s(), 0.0);
  EXPECT_DOUBLE_EQ(prediction.next_s(), 5.0);  // until this one has ended
}

TEST(Prediction, TheFirstStepIsGivenTheUpdateThatItLacked) {
  Prediction prediction(disk);
  prediction.begin_step(false);
  prediction.end_phase({.seconds = 2.0, .waited_s = 0.5, .bytes = {gb, 0}});
  prediction.end_step({.read = 2 * gb, .written = 2 * gb});
  EXPECT_DOUBLE_EQ(prediction.next_s(), 1.5 + 3.0);
  prediction.begin_step(false);  // a step was skipped: what comes after the next is as before
  prediction.end_phase({.seconds = 9.0, .waited_s = 0.0});
  prediction.end_step({});
  EXPECT_DOUBLE_EQ(prediction.next_s(), 4.5);
}

}  // namespace
}  // namespace artesian::zero3
