// Proves the order in which units are passed to the update under backward: as expected, each once
// and when it is complete; and what the next backward expects if Python runs the model.
#include "zero3/flow/gradient_order.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

using Units = std::vector<std::uint32_t>;
const std::vector<bool> all(4, true);

Units handed_out(GradientOrder& order) {
  Units units;
  while (const auto unit = order.next()) units.push_back(*unit);
  return units;
}

TEST(GradientOrder, AUnitWaitsForThoseThatAreExpectedBeforeIt) {
  GradientOrder order(4);
  order.begin({3, 2, 1});
  EXPECT_EQ(handed_out(order), Units{});
  order.complete(2);
  EXPECT_EQ(handed_out(order), Units{});
  order.complete(3);
  EXPECT_EQ(handed_out(order), (Units{3, 2}));
  order.complete(0);  // not expected
  EXPECT_EQ(handed_out(order), Units{});
  order.complete(1);
  EXPECT_EQ(handed_out(order), Units{1});
  EXPECT_EQ(handed_out(order), Units{});
}

TEST(GradientOrder, ExpectsWhatTheBackwardBeforeDid) {
  GradientOrder order(4);
  EXPECT_EQ(order.as_before(all), Units{});
  order.begin({});
  for (const std::uint32_t unit : {2u, 0u, 3u}) order.complete(unit);
  EXPECT_EQ(order.as_before(all), (Units{2, 0, 3}));
  EXPECT_EQ(order.as_before({true, true, false, true}), (Units{0, 3}));
  order.begin({2, 0, 3});
  EXPECT_FALSE(order.is_complete(2));
  order.complete(3);
  order.give_up();  // the order of this step is not expected again
  EXPECT_FALSE(order.is_complete(3));
  EXPECT_EQ(handed_out(order), Units{});
  EXPECT_EQ(order.as_before(all), (Units{2, 0, 3}));
}

TEST(GradientOrder, IsNotToldTheSameWrongThingTwice) {
  GradientOrder order(4);
  order.begin({});
  order.complete(1);
  order.complete(2);
  order.added_late(1);
  order.begin({2});
  order.complete(1);
  order.complete(1);
  EXPECT_FALSE(order.is_complete(1));
  order.complete(2);
  EXPECT_EQ(order.as_before(all), Units{2});
}

}  // namespace
}  // namespace artesian::zero3
