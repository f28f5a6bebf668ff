// Proves that steps may differ from the recorded one. Units that are left out (LayerDrop, experts),
// other units in between and a shorter last step cost little more than these units themselves, in
// fetches and in look-ahead. An order that changes each time costs no more than demands. A pass of
// an evaluation looks ahead to the next one, so that a token of generate() moves only parameters
// without room, and leaves the step's future as it was. Over slots without memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "base/random.h"
#include "tests/zero3/small_model.h"
#include "zero3/plan/dry_slots.h"
#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {
namespace {

using Accesses = std::vector<AccessOrder::Access>;

constexpr std::uint64_t unlimited = std::uint64_t{1} << 40;
constexpr std::int64_t size_of_unit = 64;

/// Counts what was accessed, in units of one size. `fetched` includes units that were never used.
struct Counted {
  std::uint64_t demand = 0;
  std::uint64_t prefetched = 0;
  std::uint64_t reused = 0;
  std::uint64_t fetched = 0;

  Counted& operator+=(const Counted& other) {
    demand += other.demand;
    prefetched += other.prefetched;
    reused += other.reused;
    fetched += other.fetched;
    return *this;
  }
  std::uint64_t accesses() const { return demand + prefetched + reused; }
};

/// A prefetcher over `count` units of one size, with room for some of them; looks four units ahead.
class Units {
 public:
  Units(std::uint32_t count, std::uint64_t room, std::uint64_t ahead = 4)
      : model_(make_model(count)),
        layout_(make_layout(model_.parameters, model_.stages, {}, 1)),
        slots_(dry_units(count), room * 4096, 0,
               [this](const DryMove& move) {
                 fetched_ += move.to == tiering::SlotState::Fetching ? 1 : 0;
               }),
        prefetcher(layout_, slots_, {ahead * size_of_unit, unlimited, unlimited}) {}
  ~Units() { EXPECT_TRUE(prefetcher.clear().has_value()); }

  void enter(const AccessOrder::Access& units) {
    ASSERT_TRUE(prefetcher.enter(units).has_value());
    ASSERT_TRUE(prefetcher.leave(units).has_value());
  }
  /// A step of these micro-batches.
  Counted step(const std::vector<Accesses>& micro_batches, StepEnd end = StepEnd::Whole) {
    prefetcher.begin_step();
    for (const Accesses& accesses : micro_batches) {
      for (const AccessOrder::Access& units : accesses) enter(units);
    }
    EXPECT_TRUE(prefetcher.end_step(end).has_value());
    EXPECT_TRUE(prefetcher.look_ahead_to_next_step().has_value());
    return counted();
  }
  /// Counts since the last call; of evaluations only fetches.
  Counted counted() {
    const FetchStatistics& found = prefetcher.statistics();
    const Counted all{.demand = found.demand / size_of_unit,
                      .prefetched = found.prefetched / size_of_unit,
                      .reused = found.reused / size_of_unit,
                      .fetched = std::exchange(fetched_, 0)};
    prefetcher.reset_statistics();
    return all;
  }

 private:
  static SmallModel make_model(std::uint32_t count) {
    SmallModel model;
    for (std::uint32_t unit = 0; unit < count; ++unit) {
      const std::string name = "p" + std::to_string(unit);
      model.parameters.push_back({.name = name, .shape = {size_of_unit}});
      model.stages.push_back({.name = name, .parameters = {unit}, .lookup = {}});
    }
    return model;
  }
  static std::vector<DryUnit> dry_units(std::uint32_t count) {
    return std::vector<DryUnit>(count, {.slot_bytes = 4096});
  }

  const SmallModel model_;
  const Layout layout_;
  std::uint64_t fetched_ = 0;
  DrySlots slots_;

 public:
  Prefetcher prefetcher;
};

Accesses there_and_back(std::uint32_t first, std::uint32_t end) {
  Accesses accesses;
  for (std::uint32_t unit = first; unit < end; ++unit) accesses.push_back({unit});
  for (std::uint32_t unit = end; unit-- > first;) accesses.push_back({unit});
  return accesses;
}

/// Leaves layers out of a step, forward and backward; never the first and the last.
Accesses without(const Accesses& accesses, std::uint32_t last,
                 const std::function<bool(std::uint32_t)>& dropped) {
  Accesses left;
  for (const AccessOrder::Access& access : accesses) {
    const std::uint32_t unit = access.front();
    if (unit == 0 || unit == last || !dropped(unit)) left.push_back(access);
  }
  return left;
}

TEST(PrefetcherDepartures, AShorterLastStepKeepsTheOrder) {
  constexpr std::uint32_t count = 12;
  const Accesses micro = there_and_back(0, count);
  Units units(count, 5);
  const std::vector<Accesses> usual{micro, micro, micro};
  units.step(usual);
  units.step(usual);
  const Counted expected = units.step(usual);
  EXPECT_EQ(expected.demand, 0u);
  for (int epoch = 0; epoch < 20; ++epoch) {
    const Counted last = units.step({micro}, StepEnd::Early);
    EXPECT_EQ(last.demand, 0u) << epoch;
    for (int step = 0; step < 2; ++step) {
      const Counted next = units.step(usual);
      EXPECT_EQ(next.demand, 0u) << epoch;
      EXPECT_EQ(next.fetched, expected.fetched) << epoch;
    }
  }
  // A step that stays shorter becomes the known order: nothing is fetched for the missing part.
  Counted alone;
  for (std::uint32_t round = 0; round < Prefetcher::forgotten_after + 3; ++round) {
    alone = units.step({micro}, StepEnd::Early);
  }
  Units other(count, 5);
  for (int step = 0; step < 3; ++step) other.step({micro});
  const Counted known = other.step({micro});
  EXPECT_EQ(alone.fetched, known.fetched);
  EXPECT_EQ(alone.demand, known.demand);
}

TEST(PrefetcherDepartures, AStepThatEndsEarlyUnsaidCutsTheOrder) {
  Units units(8, 3);
  const Accesses all = there_and_back(0, 8);
  const Accesses half(all.begin(), all.begin() + 8);
  units.step({all});
  units.step({half});
  EXPECT_EQ(units.step({half}).demand, 0u);
  EXPECT_GT(units.step({all}).demand, 0u);
}

TEST(PrefetcherDepartures, AStrayCostsItselfAlone) {
  constexpr std::uint32_t count = 20;
  for (const std::size_t at : {0u, 1u, 7u, 18u, 19u, 30u, 38u}) {
    Units units(count + 2, 6);
    const Accesses usual = there_and_back(0, count);
    for (int step = 0; step < 3; ++step) units.step({usual});
    Accesses departed = usual;
    departed.insert(departed.begin() + static_cast<std::ptrdiff_t>(at), {{count}, {count + 1}});
    const Counted counted = units.step({departed});
    EXPECT_LE(counted.demand, 2u + 2u) << at;            // and those that they displaced
    EXPECT_EQ(units.step({departed}).demand, 0u) << at;  // known by now
    EXPECT_EQ(units.step({usual}).demand, 0u) << at;     // skipped
  }
}

TEST(PrefetcherDepartures, LayersThatAreLeftOutCostNoMoreThanWhatTheyAre) {
  constexpr std::uint32_t count = 26;
  for (const double rate : {0.1, 0.2, 0.5}) {
    for (const std::uint64_t room : {std::uint64_t{6}, std::uint64_t{14}}) {
      Units units(count, room);
      Units full(count, room);
      const Accesses all = there_and_back(0, count);
      Counted dropped;
      Counted whole;
      for (std::uint64_t step = 0; step < 120; ++step) {
        const Accesses left = without(all, count - 1, [&](std::uint32_t unit) {
          return random_word(71, step, unit) % 1000 < static_cast<std::uint64_t>(rate * 1000);
        });
        const Counted one = units.step({left});
        const Counted other = full.step({all});
        EXPECT_EQ(one.accesses(), left.size());
        if (step < 20) continue;  // the first steps have not met all of them
        dropped += one;
        whole += other;
      }
      const double demands =
          static_cast<double>(dropped.demand) / static_cast<double>(dropped.accesses());
      std::printf("rate %.1f, room %2llu: %.1f%% demands, %.2f of the full step's fetches\n", rate,
                  static_cast<unsigned long long>(room), 100 * demands,
                  static_cast<double>(dropped.fetched) / static_cast<double>(whole.fetched));
      EXPECT_LT(demands, rate < 0.5 ? 0.01 : 0.15);
      EXPECT_LE(dropped.fetched, whole.fetched * (rate < 0.5 ? 11 : 13) / 10);
    }
  }
}

/// 12 layers of a dense unit and 32 experts, of which each micro-batch uses some, in order.
TEST(PrefetcherDepartures, ExpertsLeaveDenseUnitsTheirLookAhead) {
  constexpr std::uint32_t layers = 12;
  constexpr std::uint32_t experts = 32;
  constexpr std::uint32_t each = 1 + experts;
  Units units(layers * each, 40);
  Counted total;
  for (std::uint64_t step = 0; step < 60; ++step) {
    Accesses accesses;
    const auto layer = [&](std::uint32_t index) {
      accesses.push_back({index * each});
      for (std::uint32_t expert = 0; expert < experts; ++expert) {
        const bool taken = random_word(72, step, index * experts + expert) % 4 == 0;
        if (taken) accesses.push_back({index * each + 1 + expert});
      }
    };
    for (std::uint32_t index = 0; index < layers; ++index) layer(index);
    for (std::uint32_t index = layers; index-- > 0;) layer(index);
    const Counted counted = units.step({accesses});
    if (step >= 20) total += counted;
  }
  const double demands = static_cast<double>(total.demand) / static_cast<double>(total.accesses());
  std::printf("experts: %.1f%% demands, %.2f fetches an access\n", 100 * demands,
              static_cast<double>(total.fetched) / static_cast<double>(total.accesses()));
  EXPECT_LT(demands, 0.4);
}

TEST(PrefetcherDepartures, AnotherOrderEachTimeCostsLittleMoreThanDemands) {
  constexpr std::uint32_t count = 20;
  Units units(count, 5);
  Units demands(count, 5, /*ahead=*/0);
  Counted total;
  Counted plain;
  for (std::uint64_t step = 0; step < 100; ++step) {
    Accesses accesses;
    for (std::uint64_t access = 0; access < 40; ++access) {
      accesses.push_back({static_cast<std::uint32_t>(random_word(73, step, access) % count)});
    }
    total += units.step({accesses});
    plain += demands.step({accesses});
  }
  std::printf("no order: %llu fetches, on demand alone %llu\n",
              static_cast<unsigned long long>(total.fetched),
              static_cast<unsigned long long>(plain.fetched));
  EXPECT_EQ(total.accesses(), 4000u);
  EXPECT_LE(total.fetched, plain.fetched * 3 / 2);
}

TEST(PrefetcherDepartures, ATokenMovesWhatHasNoRoom) {
  constexpr std::uint32_t count = 12;
  for (const std::uint64_t room : {3u, 5u, 8u, 12u}) {
    SCOPED_TRACE(room);
    Units units(count, room);
    const Accesses micro = there_and_back(0, count);
    for (int step = 0; step < 4; ++step) units.step({micro});
    const Counted expected = units.step({micro});
    for (int call = 0; call < 2; ++call) {
      for (int token = 0; token < 30; ++token) {
        ASSERT_TRUE(units.prefetcher.begin_pass(Course::Evaluations).has_value());
        units.counted();
        for (std::uint32_t unit = 0; unit < count; ++unit) units.enter({unit});
        const Counted counted = units.counted();
        EXPECT_EQ(counted.accesses(), 0u);  // of steps
        if (token < 3) continue;
        // In a cycle that does not fit, the units in use and the four that are fetched ahead pass
        // through.
        const std::uint64_t resident =
            room == count ? count : room - std::min<std::uint64_t>(room, 5);
        EXPECT_LE(counted.fetched, count - resident) << token;
      }
      units.counted();
      units.step({micro});  // the course is left when it begins
      EXPECT_EQ(units.step({micro}).fetched, expected.fetched);
      EXPECT_EQ(units.step({micro}).demand, expected.demand);
    }
  }
}

/// Between forward and backward of a step, too.
TEST(PrefetcherDepartures, APassLeavesTheStepsFutureAsItWas) {
  constexpr std::uint32_t count = 10;
  const Accesses micro = there_and_back(0, count);
  Units units(count, 4);
  for (int step = 0; step < 3; ++step) units.step({micro});
  for (std::size_t at = 0; at < micro.size(); ++at) {
    units.prefetcher.begin_step();
    for (std::size_t index = 0; index < micro.size(); ++index) {
      if (index == at) {
        for (int pass = 0; pass < 2; ++pass) {
          ASSERT_TRUE(units.prefetcher.begin_pass(Course::Evaluations).has_value());
          for (std::uint32_t unit = 0; unit < count; ++unit) units.enter({unit});
        }
        ASSERT_TRUE(units.prefetcher.begin_pass(Course::Steps).has_value());
      }
      units.enter(micro[index]);
    }
    EXPECT_TRUE(units.prefetcher.end_step().has_value());
    EXPECT_TRUE(units.prefetcher.look_ahead_to_next_step().has_value());
    const Counted counted = units.counted();
    EXPECT_EQ(counted.demand, 0u) << at;
    EXPECT_EQ(counted.accesses(), micro.size()) << at;
  }
}

}  // namespace
}  // namespace artesian::zero3
