// Proves that a slot has its home's new values after a refresh, also if it is evicted, and gathered
// anew, in the middle of it.
#include <algorithm>
#include <cstring>

#include "tests/zero3/tiers.h"

namespace artesian::zero3 {
namespace {

/// Every parameter becomes `value`; `between` is called before each sub-group but the first.
void write_everywhere(Tiers& tiers, std::uint32_t unit, float value, bool follow,
                      const std::function<void()>& between) {
  SubGroupStream stream(*tiers.state);
  const auto body = [&](const SubGroup& group) -> Result<void> {
    if (group.index != 0 && between) between();
    std::fill_n(group.master, group.count, value);
    std::fill_n(group.exp_avg, group.count, value);
    std::fill_n(group.exp_avg_sq, group.count, value);
    if (follow) tiers.residency->refresh(unit, group.image_first, group.count, group.param);
    return {};
  };
  ASSERT_TRUE(stream.run({unit}, {.read_state = follow, .write_state = true}, body).has_value());
}

void expect_values(Tiers& tiers, std::uint32_t unit, float value) {
  ASSERT_TRUE(tiers.residency->acquire(unit).has_value());
  const auto* values = reinterpret_cast<const float*>(tiers.residency->data(unit));
  const std::uint64_t image = tiers.layout().units[unit].image;
  EXPECT_TRUE(std::all_of(values, values + image, [&](float v) { return v == value; }));
  ASSERT_TRUE(tiers.residency->unpin(unit).has_value());
}

class Refresh : public testing::Test {
 protected:
  Refresh() : tiers(make_small_model(200, 32, 2), {}) {
    while (tiers.state->placement().sub_group_count(unit) < 3) ++unit;
    write_everywhere(tiers, unit, 1.0f, false, {});
    EXPECT_TRUE(tiers.state->ring().finish().has_value());
    EXPECT_TRUE(tiers.residency->start(unit, aio::Priority::Demand).has_value());
    expect_values(tiers, unit, 1.0f);
  }
  Tiers tiers;
  std::uint32_t unit = 0;
};

TEST_F(Refresh, ReachesASlotThatStays) {
  tiers.residency->begin_refresh(unit);
  EXPECT_TRUE(tiers.residency->follows(unit));
  write_everywhere(tiers, unit, 2.0f, true, {});
  ASSERT_TRUE(tiers.residency->end_refresh(unit).has_value());
  const std::uint64_t read = tiers.state->store().statistics().bytes_read;
  expect_values(tiers, unit, 2.0f);
  EXPECT_EQ(tiers.state->store().statistics().bytes_read, read);
}

TEST_F(Refresh, ThatASlotMissedInPartIsReadBack) {
  tiers.residency->begin_refresh(unit);
  bool dropped = false;
  write_everywhere(tiers, unit, 2.0f, true, [&] {
    if (std::exchange(dropped, true)) return;
    ASSERT_TRUE(tiers.residency->drop(unit).has_value());
    EXPECT_FALSE(tiers.residency->follows(unit));
    ASSERT_TRUE(tiers.residency->start(unit, aio::Priority::Demand).has_value());
    ASSERT_TRUE(tiers.residency->acquire(unit).has_value());
    std::memset(tiers.residency->data(unit), 0xab, tiers.layout().units[unit].image * 4);
    ASSERT_TRUE(tiers.residency->unpin(unit).has_value());
  });
  ASSERT_TRUE(tiers.residency->end_refresh(unit).has_value());
  expect_values(tiers, unit, 2.0f);
}

TEST_F(Refresh, ThatASlotMissedAndThatIsGoneCostsNothing) {
  tiers.residency->begin_refresh(unit);
  bool dropped = false;
  write_everywhere(tiers, unit, 2.0f, true, [&] {
    if (std::exchange(dropped, true)) return;
    ASSERT_TRUE(tiers.residency->drop(unit).has_value());
  });
  const std::uint64_t read = tiers.state->store().statistics().bytes_read;
  ASSERT_TRUE(tiers.residency->end_refresh(unit).has_value());
  EXPECT_EQ(tiers.state->store().statistics().bytes_read, read);
  ASSERT_TRUE(tiers.residency->start(unit, aio::Priority::Demand).has_value());
  expect_values(tiers, unit, 2.0f);
}

}  // namespace
}  // namespace artesian::zero3
