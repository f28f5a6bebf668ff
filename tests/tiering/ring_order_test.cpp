// Proves the order of a pass through the ring, with a port that is a clock and a disk's queue.
// Every task is done once and in order, whatever the caller asks for and when. Nothing is read
// while it is written. A pass that may work out of order does tasks whose data has arrived before
// tasks in memory. Borrowed items read further ahead and are returned. Tasks that only write get an
// item. An error ends the pass. Random passes print their seed.
#include "tiering/ring_order.h"

#include <gtest/gtest.h>

#include <list>
#include <numeric>

#include "base/random.h"

namespace artesian::tiering {
namespace {

/// A disk that takes `transfer` for each read and write, one after the other, and a thread that
/// takes `task` for each task. Times are integers.
class Clocked {
 public:
  struct Item {
    std::uint64_t done = 0;
    bool lent = false;
    std::optional<RingTask> holds{};
  };

  explicit Clocked(std::uint32_t items) : own_(items) {}

  std::uint32_t count() const { return static_cast<std::uint32_t>(own_.size()); }
  Item& own(std::uint32_t index) { return own_[index]; }
  static bool borrowed(const Item& item) { return item.lent; }
  bool is_free(const Item& item) const { return is_idle(item); }
  bool is_idle(const Item& item) const { return item.done <= now; }
  Result<void> finish(Item& item) {
    waited += item.done > now ? item.done - now : 0;
    now = std::max(now, item.done);
    return {};
  }
  bool may_borrow() const { return lent.size() < lendable; }
  Item* borrow() { return &lent.emplace_back(Item{.done = 0, .lent = true}); }
  void give_back(const Item& item) {
    lent.remove_if([&](const Item& each) { return &each == &item; });
  }
  bool computes_elsewhere() const { return elsewhere; }
  static bool writes() { return true; }
  RingNeed need(const RingTask& of) const { return needs[of.index]; }
  Result<void> read(const RingTask& of, Item& item) {
    EXPECT_TRUE(is_idle(item));
    for (const Item& other : own_) {  // none of it is in flight to the disk
      EXPECT_FALSE(&other != &item && other.holds == of && !is_idle(other)) << of.index;
    }
    if (of.index == fails_at) return make_error(ErrorCode::Io, "the disk");
    started.push_back(of.index);
    use_disk(item);
    item.holds = of;
    return {};
  }
  Result<void> work(std::size_t place, const RingTask& of, Item* item) {
    EXPECT_EQ(item == nullptr, need(of) == RingNeed::Nothing) << place;
    if (item != nullptr) static_cast<void>(finish(*item));
    const bool is_read = need(of) == RingNeed::ToRead;
    EXPECT_TRUE(!is_read || item->holds == of) << place;
    now += task;
    done.push_back(of.index);
    if (item == nullptr) return {};
    use_disk(*item);
    item->holds = of;
    return {};
  }
  std::size_t together_max() const { return together; }
  Result<void> work_together(std::size_t, std::span<const RingTask> tasks) {
    for (const RingTask& each : tasks) {
      EXPECT_EQ(need(each), RingNeed::Nothing);
      done.push_back(each.index);
    }
    regions += 1;
    now += task;
    return {};
  }

  std::vector<RingNeed> needs;  // by index
  std::uint64_t now = 0;
  std::uint64_t waited = 0;
  std::uint64_t task = 3;
  std::uint64_t transfer = 2;
  std::size_t lendable = 0;
  std::size_t together = 1;
  std::size_t regions = 0;
  bool elsewhere = false;
  std::uint64_t fails_at = ~std::uint64_t{0};
  std::vector<std::uint64_t> started;  // reads, by index
  std::vector<std::uint64_t> done;
  std::list<Item> lent;

 private:
  void use_disk(Item& item) {
    disk_ = std::max(disk_, now) + transfer;
    item.done = disk_;
  }

  std::vector<Item> own_;
  std::uint64_t disk_ = 0;
};

constexpr RingNeed none = RingNeed::Nothing;
constexpr RingNeed write = RingNeed::ToWrite;
constexpr RingNeed read = RingNeed::ToRead;

/// Units of two tasks each.
std::vector<RingTask> tasks_of(const Clocked& port) {
  std::vector<RingTask> tasks;
  for (std::uint64_t index = 0; index < port.needs.size(); ++index) {
    tasks.push_back({static_cast<std::uint32_t>(index / 2), index});
  }
  return tasks;
}

std::vector<std::uint64_t> up_to(std::size_t count) {
  std::vector<std::uint64_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::uint64_t{0});
  return indices;
}

void begin(RingOrder<Clocked>& order, const Clocked& port) {
  ASSERT_TRUE(order.begin(tasks_of(port)).has_value());
}

TEST(RingOrder, DoesEveryTaskOnceAndInTurnWhoeverAsks) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::uint64_t draws = 0;
    const auto draw = [&](std::uint64_t count) { return random_word(9, seed, draws++) % count; };
    Clocked port(static_cast<std::uint32_t>(1 + draw(5)));
    port.task = draw(6);
    port.transfer = draw(6);
    port.lendable = draw(4);
    port.together = 1 + draw(4);
    port.elsewhere = draw(2) == 0;
    for (std::uint64_t index = 0; index < 30; ++index) {
      port.needs.push_back(std::array{none, write, read, read}[draw(4)]);
    }
    RingOrder<Clocked> order(port);
    for (int pass = 0; pass < 2; ++pass) {  // the second reads what the first may still write
      port.done.clear();
      begin(order, port);
      const bool in_turn = draw(2) == 0;
      if (!in_turn) order.allow_out_of_turn([&](std::uint32_t unit) { return unit % 3 != 0; });
      while (order.under_way()) {
        const auto unit = static_cast<std::uint32_t>(draw(15));
        port.now += draw(4);
        switch (draw(4)) {
          case 0: ASSERT_TRUE(order.advance_past(unit).has_value()); break;
          case 1: ASSERT_TRUE(order.advance_within(unit).has_value()); break;
          case 2: ASSERT_TRUE(order.read_on().has_value()); break;
          default: ASSERT_TRUE(order.give_back_borrowed().has_value());
        }
      }
      if (!in_turn) std::sort(port.done.begin(), port.done.end());
      ASSERT_EQ(port.done, up_to(30));
    }
    ASSERT_TRUE(order.finish_left().has_value());
    ASSERT_TRUE(order.give_back_borrowed().has_value());
    EXPECT_TRUE(port.lent.empty());
  }
}

TEST(RingOrder, ReadsAheadAsFarAsThereAreItems) {
  Clocked port(3);
  port.needs.assign(8, read);
  RingOrder<Clocked> order(port);
  begin(order, port);
  EXPECT_EQ(port.started, up_to(3));
  EXPECT_FALSE(order.may_read_on());
  ASSERT_TRUE(order.advance_to(1).has_value());
  port.now += 100;  // it is written
  ASSERT_TRUE(order.may_read_on());
  ASSERT_TRUE(order.read_on().has_value());
  EXPECT_EQ(port.started, up_to(4));
}

TEST(RingOrder, GoesOnByItselfOnceHalfOfTheRingHasCome) {
  Clocked port(4);
  port.needs.assign(8, read);
  RingOrder<Clocked> order(port);
  begin(order, port);
  port.now = port.transfer;  // one read has completed
  ASSERT_TRUE(order.advance_within(3).has_value());
  EXPECT_TRUE(port.done.empty());
  port.now = 2 * port.transfer;
  EXPECT_TRUE(order.may_advance());
  ASSERT_TRUE(order.advance_within(3).has_value());
  EXPECT_GE(port.done.size(), 2u);
}

TEST(RingOrder, BesideASeparateDeviceFewReadsDoNotHoldItUp) {
  for (const bool elsewhere : {true, false}) {
    Clocked port(4);
    port.elsewhere = elsewhere;
    port.needs = {read, none, none, none};  // the reads of half of the ring never complete
    RingOrder<Clocked> order(port);
    begin(order, port);
    EXPECT_FALSE(order.may_advance());
    port.now = port.transfer;
    EXPECT_EQ(order.may_advance(), elsewhere);
    ASSERT_TRUE(order.advance_within(1).has_value());
    EXPECT_EQ(port.done, up_to(elsewhere ? 4 : 0));
  }
}

TEST(RingOrder, DoesWhatHasComeBeforeTasksInMemory) {
  for (const bool allowed : {true, false}) {
    Clocked port(2);
    port.needs = {none, none, none, none, none, none, read, read, read, read, read, read};
    RingOrder<Clocked> order(port);
    begin(order, port);
    if (allowed) order.allow_out_of_turn([](std::uint32_t unit) { return unit != 4; });
    ASSERT_TRUE(order.advance_to(6).has_value());
    // Unit 4, tasks 8 and 9, is not yet due.
    const std::vector<std::uint64_t> out{0, 6, 7, 1, 2, 3, 4, 5};
    EXPECT_EQ(port.done, allowed ? out : up_to(6));
    ASSERT_TRUE(order.finish().has_value());
    EXPECT_EQ(port.done.size(), 12u);
  }
}

TEST(RingOrder, BorrowedItemsReadFurtherAheadAndGoBack) {
  Clocked port(2);
  port.needs.assign(8, read);
  RingOrder<Clocked> order(port);
  begin(order, port);
  EXPECT_EQ(port.started, up_to(2));
  port.lendable = 3;
  ASSERT_TRUE(order.may_read_on());
  ASSERT_TRUE(order.read_on().has_value());
  EXPECT_EQ(port.started, up_to(5));
  EXPECT_EQ(port.lent.size(), 3u);
  port.lendable = 0;
  ASSERT_TRUE(order.finish().has_value());
  EXPECT_EQ(port.done, up_to(8));
  port.now += 100;  // all is written
  ASSERT_TRUE(order.give_back_borrowed().has_value());
  EXPECT_FALSE(order.may_give_back());
  EXPECT_TRUE(port.lent.empty());
}

TEST(RingOrder, LeavesAnItemForTasksThatOnlyWrite) {
  Clocked port(2);
  port.needs = {write, read, read, read};
  RingOrder<Clocked> order(port);
  begin(order, port);
  EXPECT_EQ(port.started, (std::vector<std::uint64_t>{1}));
  ASSERT_TRUE(order.finish().has_value());
  EXPECT_EQ(port.done, up_to(4));
}

TEST(RingOrder, DoesTasksInMemoryTogetherWhileNothingIsInFlight) {
  Clocked port(1);
  port.together = 4;
  port.needs.assign(9, none);
  RingOrder<Clocked> order(port);
  begin(order, port);
  ASSERT_TRUE(order.finish().has_value());
  EXPECT_EQ(port.done, up_to(9));
  EXPECT_EQ(port.regions, 2u);  // 4 and 4, and the last by itself
}

TEST(RingOrder, ToAbandonReturnsWhatWasDone) {
  Clocked port(3);
  port.needs.assign(6, read);
  RingOrder<Clocked> order(port);
  begin(order, port);
  ASSERT_TRUE(order.advance_to(2).has_value());
  const auto done = order.abandon();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(*done, (std::vector<RingTask>{{0, 0}, {0, 1}}));
  EXPECT_FALSE(order.under_way());
  port.done.clear();
  begin(order, port);  // all items are there again
  ASSERT_TRUE(order.finish().has_value());
  EXPECT_EQ(port.done, up_to(6));
}

TEST(RingOrder, AnErrorEndsThePass) {
  Clocked port(2);
  port.needs.assign(6, read);
  port.fails_at = 3;
  RingOrder<Clocked> order(port);
  begin(order, port);
  const auto outcome = order.finish();
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::Io);
  EXPECT_FALSE(order.under_way());
  EXPECT_TRUE(order.finish().has_value());  // there is none
}

std::vector<RingTask> tasks_of_unit(std::uint32_t unit, std::uint64_t first, std::uint64_t count) {
  std::vector<RingTask> tasks;
  for (std::uint64_t index = first; index < first + count; ++index) tasks.push_back({unit, index});
  return tasks;
}

// Units are added, demanded and cancelled during the pass, in any order.
TEST(RingOrder, AnOpenPassDoesWhatItIsGivenAndNothingThatIsCancelled) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::uint64_t draws = 0;
    const auto draw = [&](std::uint64_t count) { return random_word(11, seed, draws++) % count; };
    Clocked port(static_cast<std::uint32_t>(1 + draw(4)));
    port.task = draw(3);
    port.transfer = 1 + draw(6);
    port.needs.assign(60, read);
    RingOrder<Clocked> order(port);
    std::vector<std::uint64_t> expected;
    for (std::uint32_t unit = 0; unit < 20; ++unit) {
      ASSERT_TRUE(order.append(tasks_of_unit(unit, unit * 3, 3)).has_value());
      const auto other = static_cast<std::uint32_t>(draw(unit + 1));
      port.now += draw(9);
      switch (draw(4)) {
        case 0: ASSERT_TRUE(order.advance_come().has_value()); break;
        case 1: ASSERT_TRUE(order.start_all().has_value()); break;
        case 2:
          while (order.end_of(other) > 0 && order.under_way()) {
            const auto has = [&](std::uint64_t index) {
              return std::count(port.done.begin(), port.done.end(), other * 3 + index) != 0;
            };
            if (has(0) && has(1) && has(2)) break;
            ASSERT_TRUE(order.demand(other).has_value());
          }
          break;
        default: {
          const auto before = port.done;
          ASSERT_TRUE(order.forget(unit).has_value());
          EXPECT_EQ(port.done, before);
          continue;
        }
      }
      for (std::uint64_t index = 0; index < 3; ++index) expected.push_back(unit * 3 + index);
    }
    ASSERT_TRUE(order.finish().has_value());
    std::sort(port.done.begin(), port.done.end());
    ASSERT_EQ(port.done, expected);
  }
}

TEST(RingOrder, WhatIsDemandedWaitsForOneTaskOfOthersAtMost) {
  Clocked port(2);
  port.task = 0;
  port.needs.assign(12, read);
  RingOrder<Clocked> order(port);
  ASSERT_TRUE(order.append(tasks_of_unit(0, 0, 6)).has_value());
  ASSERT_TRUE(order.append(tasks_of_unit(1, 6, 3)).has_value());
  EXPECT_EQ(port.started, up_to(2));
  while (std::count(port.done.begin(), port.done.end(), 8u) == 0) {
    ASSERT_TRUE(order.demand(1).has_value());
  }
  EXPECT_EQ(port.started, (std::vector<std::uint64_t>{0, 1, 6, 7, 8}));
  EXPECT_EQ(std::count_if(port.done.begin(), port.done.end(), [](auto i) { return i < 6; }), 1);
}

}  // namespace
}  // namespace artesian::tiering
