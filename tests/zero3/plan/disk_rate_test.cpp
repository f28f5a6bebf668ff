// Proves each rule of DiskRate on made-up phases: which ones count, which are ignored, and that the
// best of the last eight is taken.
#include "zero3/plan/disk_rate.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

TEST(DiskRate, IsNotKnownBeforeAPhaseHasTold) {
  DiskRate rate;
  EXPECT_FALSE(rate.share().has_value());
  rate.see(0.0, 0.0, 0.0);  // nothing was moved, in no time
  EXPECT_FALSE(rate.share().has_value());
}

TEST(DiskRate, APhaseThatWaitedForTransfersTells) {
  DiskRate rate;
  rate.see(6.0, 10.0, 7.0);  // below three quarters: the disk may have idled
  EXPECT_FALSE(rate.share().has_value());
  rate.see(6.0, 10.0, 7.5);
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.6);
}

TEST(DiskRate, WhatIsTooSlowForADiskIsPassedOver) {
  DiskRate rate;
  rate.see(2.4, 10.0, 10.0);
  EXPECT_FALSE(rate.share().has_value());
  rate.see(2.5, 10.0, 10.0);
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.25);
}

TEST(DiskRate, MayBeAboveWhatWasProbed) {
  DiskRate rate;
  rate.see(15.0, 10.0, 9.0);
  EXPECT_DOUBLE_EQ(rate.share().value(), 1.5);
}

TEST(DiskRate, TheBestOfTheLastEightCounts) {
  DiskRate rate;
  rate.see(9.0, 10.0, 9.0);
  rate.see(5.0, 10.0, 9.0);
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.9);
  for (int more = 0; more < 6; ++more) rate.see(6.0, 10.0, 9.0);
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.9);
  rate.see(9.9, 10.0, 5.0);  // does not count, and makes none of them older
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.9);
  rate.see(5.5, 10.0, 9.0);
  EXPECT_DOUBLE_EQ(rate.share().value(), 0.6);
}

}  // namespace
}  // namespace artesian::zero3
