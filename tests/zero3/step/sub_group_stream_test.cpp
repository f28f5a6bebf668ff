// Proves that a sub-group's state is read as it was written, whatever part of it is in host memory
// and whatever passes through the ring, for any number of items. Sub-groups that only write hold no
// item from reading ahead. Where allowed, sub-groups whose reads have completed precede those in
// memory, and each is done once. Borrowed items serve what the ring has no room for, and are
// returned. Sub-groups wholly in memory need no ring.
#include "zero3/step/sub_group_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "base/random.h"
#include "kernels/split_master.h"
#include "tests/zero3/tiers.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

/// A thread pool that counts how often it is forked.
class CountingTeam final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    ++regions;
    team_.parallel_for(count, 3 * grain, body);  // other cuts than those of sub-groups
  }
  std::uint64_t regions = 0;

 private:
  test_support::BackwardsExecutor team_;
};

/// Tiers of a placement that the test has made.
class PlacedTiers {
  test_support::TemporaryDirectory directory_;  // first, so that they outlive what uses them
  CountingTeam executor_;
  std::unique_ptr<aio::Engine> engine_;

 public:
  template <typename Change>
  PlacedTiers(DType dtype, const Change& change) {
    model = make_small_model(200, 32, 2);
    engine_ = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value();
    Placement placement = place(model, {.dtype = dtype}, directory_.path());
    for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
      auto& homes = placement.units[unit].optimizer_homes;
      homes.assign(static_cast<std::size_t>(placement.sub_group_count(unit)), Tier::Nvme);
    }
    change(placement);
    placement.host_pool_bytes = 8 << 20;
    state = ModelState::create(state_options(std::move(placement), directory_.path()), *engine_,
                               system_files(), executor_)
                .value();
    for (std::uint32_t unit = 0; unit < state->layout().units.size(); ++unit) units.push_back(unit);
  }
  ~PlacedTiers() { EXPECT_TRUE(state->close().has_value()); }
  std::uint64_t regions() const { return executor_.regions; }

  SmallModel model;
  std::unique_ptr<ModelState> state;
  std::vector<std::uint32_t> units;  // all
};

/// Lends at most so many pieces at a time.
class Lender final : public BufferLender {
 public:
  explicit Lender(std::uint64_t most) : most_(most) {}
  ~Lender() { EXPECT_EQ(lent, 0u); }
  bool may_lend(std::uint64_t) const noexcept override { return lent < most_; }
  BufferLease borrow(std::uint64_t bytes) noexcept override {
    if (!may_lend(bytes)) return {};
    const std::uint64_t size = (bytes + 4095) / 4096 * 4096;
    ++lent;
    ++lent_in_all;
    return {static_cast<std::byte*>(std::aligned_alloc(4096, size)), size, this};
  }
  void give_back(std::byte* data, std::uint64_t) noexcept override {
    std::free(data);
    --lent;
  }

  std::uint64_t lent = 0;
  std::uint64_t lent_in_all = 0;

 private:
  const std::uint64_t most_;
};

float value_of(const SubGroup& group, std::uint64_t array, std::uint64_t round) {
  return static_cast<float>(group.unit * 1000 + group.index * 10 + array) +
         static_cast<float>(round) * 0.5f;
}

/// Writes what the group keeps; of split master weights the halves.
void write_values(const SubGroup& group, std::uint64_t round) {
  std::uint64_t array = 0;
  for (float* values : {group.master, group.exp_avg, group.exp_avg_sq}) {
    const float value = value_of(group, array++, round);
    if (values != nullptr) std::fill_n(values, group.count, value);
  }
  if (group.master_low == nullptr) return;
  const auto split = kernels::split_master(value_of(group, 0, round), value_of(group, 2, round));
  std::fill_n(group.exp_avg_sq, group.count, split.exp_avg_sq);
  std::fill_n(group.master_low, group.count, split.low);
  std::fill_n(reinterpret_cast<std::uint16_t*>(group.param), group.count, split.high);
}

/// Writes a parameter that is no part of the master weights.
void write_param(const SubGroup& group) {
  const bool apart =
      group.master != nullptr && reinterpret_cast<std::byte*>(group.master) != group.param;
  if (apart) std::memset(group.param, 1, group.count * 2);
}

void expect_split_values(const SubGroup& group, std::uint64_t round) {
  const auto* high = reinterpret_cast<const std::uint16_t*>(group.param);
  for (std::uint64_t i = 0; i < group.count; ++i) {
    const auto joined = kernels::join_master({high[i], group.master_low[i], group.exp_avg_sq[i]});
    ASSERT_EQ(joined.master, value_of(group, 0, round)) << group.unit << " " << group.index;
    ASSERT_EQ(joined.exp_avg_sq, value_of(group, 2, round)) << group.unit << " " << group.index;
    ASSERT_EQ(group.exp_avg[i], value_of(group, 1, round)) << group.unit << " " << group.index;
  }
}

void expect_values(const SubGroup& group, std::uint64_t round) {
  if (group.master_low != nullptr) return expect_split_values(group, round);
  std::uint64_t array = 0;
  for (const float* values : {group.master, group.exp_avg, group.exp_avg_sq}) {
    const float expected = value_of(group, array++, round);
    EXPECT_TRUE(std::all_of(values, values + group.count, [&](float v) { return v == expected; }))
        << group.unit << " " << group.index << " round " << round;
  }
}

/// The values of round 0.
void write_all(PlacedTiers& tiers, SubGroupStream& stream) {
  const auto body = [](const SubGroup& group) -> Result<void> {
    write_values(group, 0);
    write_param(group);
    return {};
  };
  ASSERT_TRUE(stream.run(tiers.units, {.write_state = true}, body).has_value());
  ASSERT_TRUE(tiers.state->ring().finish().has_value());
}

TEST(SubGroupStream, AnySplitComesBackAsItWasLeft) {
  std::uint64_t lent = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::uint64_t draw = 0;
    const auto coin = [&] { return random_word(seed, 4, draw++) % 2 == 0; };
    const DType dtype = std::array{DType::Float32, DType::Float16, DType::BFloat16}[seed % 3];
    PlacedTiers tiers(dtype, [&](Placement& placement) {
      placement.ring_count = static_cast<std::uint32_t>(1 + random_word(seed, 4, draw++) % 5);
      for (UnitPlacement& unit : placement.units) {
        if (coin()) unit.param = Tier::Host;
        for (Tier& home : unit.optimizer_homes) home = coin() ? Tier::Host : Tier::Nvme;
      }
    });
    Lender lender(random_word(seed, 4, draw++) % 6);
    SubGroupStream stream(*tiers.state);
    const SubGroupStreamOptions first{.write_state = true};
    const SubGroupStreamOptions update{.read_state = true, .write_state = true};
    for (std::uint64_t round = 0; round < 3; ++round) {
      const auto body = [&](const SubGroup& group) -> Result<void> {
        if (round != 0) expect_values(group, round - 1);
        write_values(group, round);
        write_param(group);
        return {};
      };
      ASSERT_TRUE(stream.begin(tiers.units, round == 0 ? first : update, body).has_value());
      if (coin()) stream.allow_out_of_turn([](std::uint32_t unit) { return unit != 2; });
      for (const std::uint32_t unit : tiers.units) {  // at some, read on without a wait
        stream.borrow_from(coin() ? &lender : nullptr);
        for (int tries = coin() ? 0 : 20; tries > 0; --tries) {
          const auto done = stream.advance_within(unit);
          ASSERT_TRUE(done.has_value());
          if (*done) break;
        }
        if (coin()) continue;
        ASSERT_TRUE(stream.advance_past(unit).has_value());
      }
      ASSERT_TRUE(stream.finish().has_value());
      ASSERT_TRUE(tiers.state->ring().finish().has_value());
      ASSERT_TRUE(stream.give_back_borrowed().has_value());
      EXPECT_EQ(lender.lent, 0u);
    }
    lent += lender.lent_in_all;
    stream.borrow_from(nullptr);
    const auto check = [&](const SubGroup& group) -> Result<void> {
      expect_values(group, 2);
      return {};
    };
    ASSERT_TRUE(stream.run(tiers.units, {.read_state = true}, check).has_value());
    ASSERT_TRUE(tiers.state->ring().finish().has_value());
  }
  EXPECT_GT(lent, 100u);
}

TEST(SubGroupStream, ReadsAsFarAheadAsItMayBorrow) {
  PlacedTiers tiers(DType::Float32, [](Placement& placement) { placement.ring_count = 2; });
  SubGroupStream stream(*tiers.state);
  write_all(tiers, stream);
  const auto body = [](const SubGroup& group) -> Result<void> {
    expect_values(group, 0);
    return {};
  };
  Lender lender(3);
  stream.borrow_from(&lender);
  ASSERT_TRUE(stream.begin(tiers.units, {.read_state = true}, body).has_value());
  EXPECT_EQ(lender.lent, 3u);
  EXPECT_EQ(tiers.state->ring().borrowed(), 3u);
  stream.borrow_from(nullptr);
  ASSERT_TRUE(stream.advance_past(tiers.units.back()).has_value());
  EXPECT_EQ(lender.lent, 0u);
  stream.borrow_from(&lender);  // and when the pass is given up
  ASSERT_TRUE(stream.begin(tiers.units, {.read_state = true}, body).has_value());
  EXPECT_EQ(lender.lent, 3u);
  ASSERT_TRUE(stream.abandon().has_value());
  EXPECT_EQ(lender.lent, 0u);
}

/// Returns the units of the sub-groups in the order in which a pass did them, if their reads had
/// completed before it continued.
std::vector<std::uint32_t> order_of_pass(PlacedTiers& tiers, SubGroupStream& stream,
                                         const std::function<bool(std::uint32_t)>& out_of_turn) {
  std::vector<std::uint32_t> order;
  std::set<std::pair<std::uint32_t, std::uint64_t>> done;
  const auto body = [&](const SubGroup& group) -> Result<void> {
    order.push_back(group.unit);
    EXPECT_TRUE(done.emplace(group.unit, group.index).second) << group.unit << " " << group.index;
    expect_values(group, 0);
    return {};
  };
  EXPECT_TRUE(stream.begin(tiers.units, {.read_state = true, .write_state = true}, body));
  stream.allow_out_of_turn(out_of_turn);
  while (!tiers.state->ring().at(0).idle() || !tiers.state->ring().at(1).idle()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(stream.advance_past(0).has_value());
  EXPECT_TRUE(stream.finish().has_value());
  EXPECT_TRUE(tiers.state->ring().finish().has_value());
  return order;
}

TEST(SubGroupStream, WhatHasComeGoesBeforeWhatIsInMemoryWhereItMay) {
  PlacedTiers tiers(DType::Float32, [](Placement& placement) {
    placement.ring_count = 2;
    placement.units[0].param = Tier::Host;
    for (Tier& home : placement.units[0].optimizer_homes) home = Tier::Host;
  });
  SubGroupStream stream(*tiers.state);
  write_all(tiers, stream);
  const auto in_turn = order_of_pass(tiers, stream, nullptr);
  EXPECT_TRUE(std::is_sorted(in_turn.begin(), in_turn.end()));
  EXPECT_EQ(order_of_pass(tiers, stream, [](std::uint32_t) { return false; }), in_turn);
  const auto before = order_of_pass(tiers, stream, [](std::uint32_t unit) { return unit == 1; });
  EXPECT_EQ(before.size(), in_turn.size());
  EXPECT_EQ((std::vector(before.begin(), before.begin() + 2)), (std::vector<std::uint32_t>{1, 1}));
}

TEST(SubGroupStream, SubGroupsThatOnlyWriteHoldNoItemFromReadingAhead) {
  PlacedTiers tiers(DType::Float16, [](Placement& placement) {
    placement.ring_count = 3;
    placement.units[0].optimizer_homes[0] = placement.units[0].optimizer_homes[1] = Tier::Host;
  });
  SubGroupStream stream(*tiers.state);
  write_all(tiers, stream);
  const Placement& plan = tiers.state->placement();
  ASSERT_GE(plan.sub_group_count(0), 4u);
  const std::uint64_t before = tiers.state->store().statistics().bytes_read;
  std::vector<std::uint64_t> records_read;  // started, at each sub-group
  const auto body = [&](const SubGroup&) -> Result<void> {
    const std::uint64_t bytes = tiers.state->store().statistics().bytes_read - before;
    records_read.push_back(bytes / plan.record_bytes(0, 0));
    return {};
  };
  const SubGroupStreamOptions update{.read_state = true, .write_state = true};
  ASSERT_TRUE(stream.run(tiers.units, update, body).has_value());
  ASSERT_TRUE(tiers.state->ring().finish().has_value());
  EXPECT_EQ(records_read[0], 2u);  // all items but the one that the first two write from
  EXPECT_GE(records_read[1], 2u);
  EXPECT_GE(records_read[2], 2u);
}

TEST(SubGroupStream, SubGroupsInMemoryAreDoneSeveralInARegionOfTheTeam) {
  PlacedTiers tiers(DType::Float16, [](Placement& placement) {
    placement.ring_count = 2;
    for (UnitPlacement& unit : placement.units) {
      unit.param = Tier::Host;
      unit.optimizer_homes.assign(unit.optimizer_homes.size(), Tier::Host);
    }
    placement.units[2].optimizer_homes.back() = Tier::Nvme;
  });
  const Placement& plan = tiers.state->placement();
  SubGroupStream stream(*tiers.state);
  write_all(tiers, stream);
  std::uint64_t in_memory = 0;
  for (const std::uint32_t unit : tiers.units) in_memory += plan.sub_group_count(unit);
  --in_memory;
  ASSERT_GT(in_memory, 12u);
  std::set<std::pair<std::uint32_t, std::uint64_t>> sliced;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> done;
  const auto slice = [&](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(end, group.count);
    expect_values(group, 0);
    write_values(group, 1);
    EXPECT_TRUE(sliced.emplace(group.unit, group.index).second);
  };
  const auto after = [&](const SubGroup& group) -> Result<void> {
    EXPECT_TRUE(sliced.contains({group.unit, group.index}));
    done.emplace_back(group.unit, group.index);
    return {};
  };
  const std::uint64_t before = tiers.regions();
  const SubGroupStreamOptions update{.read_state = true, .write_state = true};
  ASSERT_TRUE(stream.begin(tiers.units, update, {.slice = slice, .after = after}).has_value());
  while (!tiers.state->ring().at(0).idle()) std::this_thread::yield();
  ASSERT_TRUE(stream.advance_past(0).has_value());
  EXPECT_EQ(done.size(), plan.sub_group_count(0));  // nothing that was not demanded
  EXPECT_EQ(sliced.size(), done.size());
  ASSERT_TRUE(stream.finish().has_value());
  ASSERT_TRUE(tiers.state->ring().finish().has_value());
  EXPECT_EQ(done.size(), in_memory + 1);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_LE(tiers.regions() - before, tiers.units.size() + 1);
  const auto check = [](const SubGroup& group) -> Result<void> {
    expect_values(group, 1);
    return {};
  };
  ASSERT_TRUE(stream.run(tiers.units, {.read_state = true}, check).has_value());
  ASSERT_TRUE(tiers.state->ring().finish().has_value());
}

TEST(SubGroupStream, StateThatIsAllInMemoryNeedsNoRing) {
  PlacedTiers tiers(DType::Float16, [](Placement& placement) {
    placement.ring_count = 0;
    placement.ring_item_bytes = 0;
    for (UnitPlacement& unit : placement.units) {
      unit.param = Tier::Host;
      unit.optimizer_homes.assign(unit.optimizer_homes.size(), Tier::Host);
    }
  });
  SubGroupStream stream(*tiers.state);
  const SubGroupStreamOptions everything{
      .read_state = true, .read_grad = true, .write_state = true};
  std::uint64_t count = 0;
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const SubGroup home = stream.at_home(group.unit, group.index);
    EXPECT_EQ(group.master, home.master);
    EXPECT_EQ(group.exp_avg_sq, home.exp_avg_sq);
    EXPECT_EQ(group.param, home.param);
    EXPECT_EQ(group.grad, home.grad);
    EXPECT_NE(home.master, nullptr);
    ++count;
    return {};
  };
  ASSERT_TRUE(stream.run(tiers.units, everything, body).has_value());
  EXPECT_GT(count, 5u);
  EXPECT_EQ(tiers.state->store().statistics().bytes_read, 0u);
}

}  // namespace
}  // namespace artesian::zero3
