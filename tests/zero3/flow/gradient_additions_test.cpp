// Proves the effect of additions on a step's gradients: which of them set elements, which elements
// become zeros and may be overwritten later, and which sub-groups of a unit that spills are read
// and written.
#include "zero3/flow/gradient_additions.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

using Groups = std::vector<std::uint64_t>;
using Units = std::vector<std::uint32_t>;
constexpr std::uint64_t size = 2048;  // of a sub-group, and of the parameters below

struct Piece {
  std::uint64_t first;
  std::uint64_t count;
};

/// Two units: parameters 0 and 1 in memory, and 2 to 4, which spill.
Placement placement_of(tiering::Tier first, tiering::Tier second) {
  Placement placement;
  placement.sub_group = size;
  for (const std::uint32_t count : {2u, 3u}) {
    Unit unit;
    unit.share = unit.image = count * size;
    for (std::uint32_t each = 0; each < count; ++each) {
      unit.parameters.push_back(static_cast<std::uint32_t>(placement.layout.places.size()));
      const auto index = static_cast<std::uint32_t>(placement.layout.units.size());
      placement.layout.places.push_back({index, each * size, size, 0});
    }
    placement.layout.units.push_back(unit);
  }
  placement.units.resize(2);
  placement.units[0].grad = first;
  placement.units[1].grad = second;
  return placement;
}

const Placement spilling = placement_of(tiering::Tier::Host, tiering::Tier::Nvme);

TEST(GradientAdditions, TheFirstOfAStepSets) {
  GradientAdditions additions(spilling);
  EXPECT_TRUE(additions.sets(0));
  EXPECT_FALSE(additions.reached(0));
  additions.added(0);
  EXPECT_FALSE(additions.sets(0));
  EXPECT_TRUE(additions.reached(0));
  EXPECT_TRUE(additions.sets(1));  // of the same unit
  additions.replace(0);
  EXPECT_TRUE(additions.sets(0));
  EXPECT_TRUE(additions.reached(0));
  additions.begin_step();
  EXPECT_TRUE(additions.sets(0));
  EXPECT_FALSE(additions.reached(0));
}

TEST(GradientAdditions, WhatNothingWasAddedToBecomesZeroAndMayBeSetAfterAll) {
  GradientAdditions additions(spilling);
  additions.added(1);
  EXPECT_FALSE(additions.is_whole(0));
  EXPECT_EQ(additions.zero_rest(0).in_memory, Units{0});
  EXPECT_TRUE(additions.is_whole(0));
  EXPECT_EQ(additions.zero_rest(0).in_memory, Units{});
  EXPECT_FALSE(additions.sets(0));
  additions.undo_zeros(0);
  EXPECT_TRUE(additions.sets(0));
  EXPECT_FALSE(additions.sets(1));
}

TEST(GradientAdditions, AUnitThatSpillsEntersAsZerosAndThenBySubGroup) {
  GradientAdditions additions(spilling);
  const auto first = additions.enter(1, std::vector<Piece>{{size, size}});
  EXPECT_TRUE(first.as_zeros);
  EXPECT_EQ(first.read, Groups{});
  EXPECT_EQ(additions.enter(1, std::vector<Piece>{{0, size}}).read, Groups{});  // it is resident
  EXPECT_EQ(additions.leave(1), (Groups{0, 1, 2}));
  const auto second = additions.enter(1, std::vector<Piece>{{size, 1}, {size + 1, size}});
  EXPECT_FALSE(second.as_zeros);
  EXPECT_EQ(second.read, (Groups{1, 2}));
  EXPECT_EQ(additions.enter(1, std::vector<Piece>{{0, 1}, {size, 1}}).read, Groups{0});
  EXPECT_EQ(additions.leave(1), (Groups{0, 1, 2}));
  EXPECT_EQ(additions.enter(1, std::vector<Piece>{{2 * size, size}}).read, Groups{2});
  EXPECT_EQ(additions.leave(1), Groups{2});
  additions.begin_step();
  EXPECT_TRUE(additions.enter(1, std::vector<Piece>{}).as_zeros);
}

TEST(GradientAdditions, AUnitThatSpillsWithoutAnyEntersAsZeros) {
  GradientAdditions additions(spilling);
  auto zeros = additions.zero_rest(1);
  EXPECT_TRUE(zeros.in_buffer);
  EXPECT_EQ(zeros.in_memory, Units{});
  additions.enter(1, std::vector<Piece>{});
  additions.leave(1);
  EXPECT_FALSE(additions.zero_rest(1).in_buffer);
  additions.begin_step();
  additions.enter(1, std::vector<Piece>{{0, size}});
  additions.added(2);
  zeros = additions.zero_rest(1);  // the others are zero since it entered
  EXPECT_FALSE(zeros.in_buffer);
  EXPECT_EQ(zeros.in_memory, Units{});
  EXPECT_TRUE(additions.is_whole(1));
}

TEST(GradientAdditions, TheDeviceSumsWhatWouldSetElements) {
  Placement placement = placement_of(tiering::Tier::Host, tiering::Tier::Host);
  placement.units[0].gradient = tiering::Route::Queues;
  GradientAdditions additions(placement);
  EXPECT_EQ(additions.additions(0, 4), 1u);
  EXPECT_EQ(additions.additions(2, 4), 4u);  // the host can address it
  additions.added(0);
  EXPECT_EQ(additions.additions(0, 4), 4u);
  EXPECT_EQ(additions.additions(1, 4), 1u);
  additions.begin_step();
  EXPECT_EQ(additions.additions(0, 4), 1u);
}

}  // namespace
}  // namespace artesian::zero3
