// Proves the order of a step's update, as the optimizer and the plan play it. Every unit is updated
// once a step, whatever is updated under backward, rolled back or skipped. An update under backward
// waits for its unit's gradient. The other units are updated in forward's order, as they are
// demanded. A call out of order aborts. Random walks through all legal calls print their seed.
#include "zero3/flow/update_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;
using Units = std::vector<std::uint32_t>;

/// Five units, of which 1 is frozen. `grad`: the home of all gradients.
Placement five_units(Tier grad = Tier::Host) {
  Placement placement;
  placement.layout.units.resize(5);
  placement.units.resize(5);
  placement.layout.units[1].trainable = false;
  for (UnitPlacement& unit : placement.units) unit.grad = grad;
  return placement;
}

Units of(std::span<const std::uint32_t> units) {
  return {units.begin(), units.end()};
}

constexpr auto always = [](std::uint32_t) { return true; };
constexpr auto never = [](std::uint32_t) { return false; };

Units update_all(UpdateOrder& order) {
  Units updated;
  while (order.some_left()) {
    updated.push_back(order.next());
    order.update_next();
  }
  return updated;
}

TEST(UpdateOrder, IsThatOfForwardWithoutFrozenUnits) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  EXPECT_EQ(order.trained(), (Units{0, 2, 3, 4}));
  order.set_order({3, 1, 0, 3});
  EXPECT_EQ(order.trained(), (Units{3, 0, 2, 4}));
  EXPECT_FALSE(order.begin_deferred());
  EXPECT_EQ(update_all(order), (Units{3, 0, 2, 4}));
}

TEST(UpdateOrder, ADemandComesToAUnitAndThoseBeforeIt) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  order.set_order({3, 0, 2});
  EXPECT_FALSE(order.demands(4));  // nothing is begun
  order.begin_deferred();
  EXPECT_FALSE(order.demands(1));  // frozen: no update
  Units updated;
  for (; order.demands(0); order.update_next()) updated.push_back(order.next());
  EXPECT_EQ(updated, (Units{3, 0}));
  EXPECT_FALSE(order.is_pending(0));
  EXPECT_TRUE(order.is_pending(2) && order.is_pending(4));
  EXPECT_FALSE(order.demands(3));
}

TEST(UpdateOrder, WhatIsLeftMayComeEarlyWhereItsSlotStays) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  order.begin_deferred();
  EXPECT_TRUE(order.may_update_next(always));
  EXPECT_FALSE(order.may_update_next(never));
  EXPECT_FALSE(order.may_update_next([](std::uint32_t unit) { return unit != 0; }));
}

TEST(UpdateOrder, UnderBackwardAUnitWaitsForItsOwnGradient) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  order.begin_ahead({4, 2}, /*tried=*/false);
  EXPECT_EQ(order.phase(), UpdatePhase::Begun);
  EXPECT_EQ(order.pass(), (Units{4, 2, 0, 3}));  // read behind them: gradients are in memory
  EXPECT_FALSE(order.may_update_next(always));
  order.gradient_is_final(4);
  EXPECT_TRUE(order.may_update_next(never));  // backward needs no slot
  order.update_next();
  EXPECT_FALSE(order.may_update_next(always));
  order.gradient_is_final(2);
  order.update_next();
  EXPECT_TRUE(order.begin_deferred());  // the pass continues
  EXPECT_EQ(of(order.left()), (Units{0, 3}));
  EXPECT_FALSE(order.is_pending(4));
}

TEST(UpdateOrder, ThePassIsANewOneWhereGradientsComeThroughTheRing) {
  const Placement placement = five_units(Tier::Nvme);
  UpdateOrder order(placement);
  order.begin_ahead({}, /*tried=*/false);
  EXPECT_EQ(order.phase(), UpdatePhase::Idle);
  EXPECT_FALSE(order.begin_deferred());
  EXPECT_EQ(order.pass(), (Units{0, 2, 3, 4}));
}

TEST(UpdateOrder, LeavesOutWhatADeviceUpdates) {
  Placement placement = five_units();
  placement.units[2].update = tiering::Route::OnDevice;
  UpdateOrder order(placement);
  EXPECT_EQ(order.trained(), (Units{0, 2, 3, 4}));
  order.begin_deferred();
  EXPECT_EQ(order.pass(), (Units{0, 3, 4}));
}

TEST(UpdateOrder, AfterARollBackAllUnitsAreLeftAndTheNextStepDoesNotTry) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  order.begin_ahead({4}, /*tried=*/true);
  order.gradient_is_final(4);
  order.update_next();
  order.judged(/*as_begun=*/false);
  order.roll_back();
  EXPECT_FALSE(order.is_ahead(4));
  EXPECT_FALSE(order.begin_deferred());
  EXPECT_EQ(update_all(order), (Units{0, 2, 3, 4}));
  order.finish();
  order.begin_ahead({4}, /*tried=*/true);
  EXPECT_EQ(order.phase(), UpdatePhase::Reading);
  order.judged(/*as_begun=*/true);
  EXPECT_TRUE(order.begin_deferred());
  static_cast<void>(update_all(order));
  order.finish();
  order.begin_ahead({4}, /*tried=*/true);
  EXPECT_EQ(order.phase(), UpdatePhase::Tried);
}

TEST(UpdateOrder, WhatWasReadForAStepThatWasSkippedServesTheNext) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  EXPECT_FALSE(order.goes_on_reading({}, false));
  order.begin_ahead({}, /*tried=*/false);
  EXPECT_TRUE(order.goes_on_reading({}, false));
  EXPECT_FALSE(order.goes_on_reading({4}, false));
  EXPECT_FALSE(order.goes_on_reading({4}, true));
  order.judged(/*as_begun=*/false);
  EXPECT_TRUE(order.goes_on_reading({4}, true));  // the units that will not be tried
  order.stop_reading();
  EXPECT_EQ(order.phase(), UpdatePhase::Idle);
  EXPECT_TRUE(order.pass().empty());
}

/// Walks through steps at random and counts the updates that were not rolled back.
class Walk {
 public:
  explicit Walk(std::uint64_t seed)
      : seed_(seed), placement_(five_units(draw(4) == 0 ? Tier::Nvme : Tier::Host)) {
    if (draw(3) == 0) placement_.units[0].update = tiering::Route::OnDevice;
  }

  void run() {
    for (int step = 0; step < 40; ++step) {
      counts_.assign(5, 0);
      const bool tried = draw(2) == 0;
      begin(tried);
      finals();
      const bool right = draw(3) != 0;
      order_.judged(right);
      if (!right && order_.phase() == UpdatePhase::Tried) roll_back();
      if (order_.phase() == UpdatePhase::Reading && draw(4) == 0) order_.stop_reading();
      if (!order_.under_backward() && draw(5) == 0) continue;  // skipped
      settle();
    }
  }

 private:
  std::uint64_t draw(std::uint64_t count) { return random_word(3, seed_, draws_++) % count; }

  void begin(bool tried) {
    Units units;
    if (placement_.gradients_in_memory()) {
      for (const std::uint32_t unit : {4u, 3u, 2u}) {
        if (draw(2) == 0) units.push_back(unit);
      }
    }
    if (!order_.goes_on_reading(units, tried)) {
      if (order_.phase() == UpdatePhase::Reading) order_.stop_reading();
      order_.begin_ahead(units, tried);
    }
  }

  void update() {
    ++counts_[order_.next()];
    order_.update_next();
  }

  void finals() {
    while (order_.under_backward() && order_.finals().size() < order_.ahead().size()) {
      if (draw(6) == 0) return;  // the rest are known at the end
      order_.gradient_is_final(order_.ahead()[order_.finals().size()]);
      while (order_.may_update_next(never) && draw(2) == 0) update();
    }
  }

  void roll_back() {
    for (const std::uint32_t unit : order_.updated()) --counts_[unit];
    order_.roll_back();
  }

  void settle() {
    while (order_.finals().size() < order_.ahead().size()) {
      order_.gradient_is_final(order_.ahead()[order_.finals().size()]);
    }
    while (order_.updated().size() < order_.ahead().size()) update();
    const bool goes_on = order_.some_left();  // what was read behind them
    EXPECT_EQ(order_.begin_deferred(), goes_on) << "seed " << seed_;
    for (const std::uint32_t unit : {0u, 1u, 2u, 3u, 4u}) {
      if (draw(2) == 0 && order_.may_update_next(always)) update();
      while (order_.demands(unit)) update();
      EXPECT_FALSE(order_.is_pending(unit)) << "seed " << seed_;
    }
    while (order_.some_left()) update();
    order_.finish();
    for (std::uint32_t unit = 0; unit < 5; ++unit) {
      const bool by_pass = unit != 1 && !placement_.units[unit].updated_on_device();
      EXPECT_EQ(counts_[unit], by_pass ? 1 : 0) << "unit " << unit << " seed " << seed_;
    }
  }

  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  Placement placement_;
  UpdateOrder order_{placement_};
  std::vector<int> counts_;
};

TEST(UpdateOrder, UpdatesEveryUnitOnceAStep) {
  for (std::uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) Walk(seed).run();
}

TEST(UpdateOrderDeathTest, ACallOutOfOrderAborts) {
  const Placement placement = five_units();
  UpdateOrder order(placement);
  EXPECT_DEATH(order.finish(), "");
  EXPECT_DEATH(order.roll_back(), "");
  order.begin_ahead({4, 2}, /*tried=*/false);
  EXPECT_DEATH(order.stop_reading(), "");        // some units may be of two steps
  EXPECT_DEATH(order.update_next(), "");         // its gradient is not final
  EXPECT_DEATH(order.gradient_is_final(2), "");  // 4 is the next
  EXPECT_DEATH(order.begin_deferred(), "");
  EXPECT_DEATH(order.begin_ahead({}, false), "");
}

}  // namespace
}  // namespace artesian::zero3
