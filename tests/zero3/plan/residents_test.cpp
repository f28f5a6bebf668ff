// Proves what choose_residents promises: limits are kept; all gradients are chosen if they fit,
// then candidates of most worth; more room never saves less, except where gradients first fit; the
// result is within one candidate of the best choice. An order is spread evenly. The counted fetches
// are close to those of the Prefetcher, whose look-ahead costs a unit or two.
#include "zero3/plan/residents.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/zero3/tiers.h"
#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {
namespace {

struct Sum {
  std::uint64_t bytes = 0, elements = 0, saved = 0;
};

Sum sum_of(const std::vector<Candidate>& candidates) {
  Sum sum;
  for (const Candidate& candidate : candidates) {
    sum.bytes += candidate.bytes;
    sum.elements += candidate.elements;
    sum.saved += candidate.bytes * candidate.moves;
  }
  return sum;
}

std::vector<Candidate> random_candidates(std::uint64_t seed) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t limit) { return random_word(seed, 2, draw++) % limit; };
  std::vector<Candidate> candidates(static_cast<std::size_t>(1 + below(10)));
  for (Candidate& candidate : candidates) {
    candidate.kind = static_cast<ResidentKind>(below(3));
    candidate.bytes = 1 + below(100);
    candidate.moves = below(6);
    if (candidate.kind == ResidentKind::Parameter) candidate.elements = candidate.bytes;
  }
  return candidates;
}

/// The most that any choice within `bytes` saves.
std::uint64_t best_by_brute_force(const std::vector<Candidate>& candidates, std::uint64_t bytes) {
  std::uint64_t best = 0;
  for (std::uint64_t mask = 0; mask < std::uint64_t{1} << candidates.size(); ++mask) {
    std::vector<Candidate> chosen;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if ((mask >> i & 1) != 0) chosen.push_back(candidates[i]);
    }
    const Sum sum = sum_of(chosen);
    if (sum.bytes <= bytes) best = std::max(best, sum.saved);
  }
  return best;
}

constexpr std::uint64_t no_limit = ~std::uint64_t{0};

TEST(Residents, SaveNeverLessWithMoreRoomAndNearlyTheMost) {
  std::uint64_t gradients_first = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const auto candidates = random_candidates(seed);
    std::vector<Candidate> gradients;
    std::vector<Candidate> others;
    std::uint64_t largest = 0;
    for (const Candidate& candidate : candidates) {
      (candidate.kind == ResidentKind::Gradient ? gradients : others).push_back(candidate);
      largest = std::max(largest, candidate.bytes * candidate.moves);
    }
    const Sum all_gradients = sum_of(gradients);
    bool fitted = false;
    std::uint64_t before = 0;
    for (std::uint64_t room = 0; room <= sum_of(candidates).bytes; room += 7) {
      const Sum sum = sum_of(choose_residents(candidates, {room, no_limit}));
      ASSERT_LE(sum.bytes, room);
      const bool fit = all_gradients.bytes <= room;  // then every choice has them
      if (fit && !fitted && sum.saved < before) {
        ++gradients_first;
        before = 0;
      }
      fitted = fit;
      ASSERT_GE(sum.saved, before);
      before = sum.saved;
      const std::uint64_t best =
          fit ? all_gradients.saved + best_by_brute_force(others, room - all_gradients.bytes)
              : best_by_brute_force(candidates, room);
      ASSERT_LE(sum.saved, best);
      ASSERT_GE(sum.saved + largest, best);
    }
    EXPECT_EQ(choose_residents(candidates, {no_limit, no_limit}).size(), candidates.size());
  }
  EXPECT_GT(gradients_first, 10u);
}

TEST(Residents, ElementsAreAnUpperBoundOfParametersAlone) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto candidates = random_candidates(seed);
    for (const std::uint64_t elements : {0u, 40u, 90u}) {
      const auto residents = choose_residents(candidates, {no_limit, elements});
      EXPECT_LE(sum_of(residents).elements, elements);
      for (const Candidate& candidate : candidates) {  // the others are not affected
        if (candidate.kind == ResidentKind::Parameter) continue;
        EXPECT_TRUE(std::any_of(residents.begin(), residents.end(), [&](const Candidate& kept) {
          return kept.kind == candidate.kind && kept.bytes == candidate.bytes;
        }));
      }
    }
  }
}

TEST(Residents, WhatIsWorthMostComesFirstAndThenByKind) {
  const std::vector<Candidate> candidates{
      {.kind = ResidentKind::OptimizerState, .unit = 0, .bytes = 1, .moves = 3},
      {.kind = ResidentKind::Parameter, .unit = 1, .bytes = 1, .moves = 3},
      {.kind = ResidentKind::Parameter, .unit = 2, .bytes = 1, .moves = 4},
      {.kind = ResidentKind::Gradient, .unit = 3, .bytes = 1, .moves = 3},
      {.kind = ResidentKind::Gradient, .unit = 4, .bytes = 4, .moves = 3}};
  const auto units = [&](std::uint64_t room) {
    std::vector<std::uint32_t> chosen;
    for (const auto& resident : choose_residents(candidates, {room, no_limit})) {
      chosen.push_back(resident.unit);
    }
    return chosen;
  };
  EXPECT_EQ(units(4), (std::vector<std::uint32_t>{2, 3, 1, 0}));  // no room for all gradients
  EXPECT_EQ(units(5), (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(units(8), (std::vector<std::uint32_t>{3, 4, 2, 1, 0}));
}

TEST(Residents, EveryBeginningOfTheOrderIsSpreadEvenly) {
  for (const std::uint64_t count : {1u, 2u, 3u, 10u, 64u, 500u}) {
    const auto order = spread_order(count);
    ASSERT_EQ(order.size(), count);
    for (std::size_t taken = 1; taken <= order.size(); ++taken) {
      std::vector<std::uint64_t> places(order.begin(),
                                        order.begin() + static_cast<std::ptrdiff_t>(taken));
      std::sort(places.begin(), places.end());
      ASSERT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
      places.push_back(count + places.front());  // cyclically
      std::uint64_t gap_max = 0;
      for (std::size_t i = 1; i < places.size(); ++i) {
        gap_max = std::max(gap_max, places[i] - places[i - 1]);
      }
      EXPECT_LE(static_cast<double>(gap_max),
                3.0 * static_cast<double>(count) / static_cast<double>(taken) + 1.0)
          << taken << " of " << count;
    }
  }
}

/// Bytes that the last of several passes through the stages reads, by a real Prefetcher. Its
/// forward gathers each unit when it is refreshed, as under an update.
std::uint64_t bytes_fetched(Tiers& tiers, const PrefetchLimits& limits) {
  Prefetcher prefetcher(tiers.layout(), *tiers.residency, limits);
  const auto& stages = tiers.layout().stages;
  std::uint64_t read_before = 0;
  std::vector<bool> refreshing(tiers.layout().units.size(), false);
  const auto end_refresh = [&](std::uint32_t unit) {
    if (!refreshing[unit]) return;
    EXPECT_TRUE(tiers.residency->end_refresh(unit).has_value());
    refreshing[unit] = false;
  };
  for (int pass = 0; pass < 4; ++pass) {
    read_before = tiers.state->store().statistics().bytes_read;
    prefetcher.begin_step();
    const auto visit = [&](std::size_t stage, bool backward) {
      AccessOrder::Access units = stages[stage];
      const auto& lookup = tiers.model.stages[stage].lookup;
      if (backward && lookup.has_value()) {
        std::erase(units, tiers.layout().places[*lookup].unit);
      }
      EXPECT_TRUE(prefetcher.enter(units).has_value());
      for (const auto unit : units) end_refresh(unit);
      EXPECT_TRUE(prefetcher.leave(units).has_value());
    };
    for (std::size_t stage = 0; stage < stages.size(); ++stage) visit(stage, false);
    for (std::size_t stage = stages.size(); stage-- > 0;) visit(stage, true);
    EXPECT_TRUE(prefetcher.end_step().has_value());
    for (std::uint32_t unit = 0; unit < refreshing.size(); ++unit) {
      tiers.residency->begin_refresh(unit);
      refreshing[unit] = true;
    }
    EXPECT_TRUE(prefetcher.look_ahead_to_next_step().has_value());
  }
  for (std::uint32_t unit = 0; unit < refreshing.size(); ++unit) end_refresh(unit);
  EXPECT_TRUE(prefetcher.clear().has_value());
  return tiers.state->store().statistics().bytes_read - read_before;
}

TEST(Residents, FetchesAreThoseOfAPrefetcherThatMovesBytes) {
  for (const bool tied : {true, false}) {
    Tiers tiers(make_small_model(200, 32, 5, tied), {});
    SubGroupStream stream(*tiers.state);
    std::vector<std::uint32_t> units(tiers.layout().units.size());
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) units[unit] = unit;
    ASSERT_TRUE(
        stream.run(units, {.write_state = true}, [](const SubGroup&) -> Result<void> { return {}; })
            .has_value());
    ASSERT_TRUE(tiers.state->ring().finish().has_value());
    for (const std::uint64_t live : {0u, 10'000u, 20'000u, 30'000u, 45'000u, 1'000'000u}) {
      for (const std::uint64_t distance : {0u, 20'000u, 60'000u, 1'000'000u}) {
        SCOPED_TRACE("live " + std::to_string(live) + ", distance " + std::to_string(distance));
        const PrefetchLimits limits{50'000'000, live, distance};
        const auto moves = moves_of_a_pass(tiers.state->placement(), tiers.model.stages, limits);
        std::uint64_t expected = 0;
        for (std::size_t unit = 0; unit < moves.size(); ++unit) {
          expected += moves[unit].fetches * tiers.layout().units[unit].image * sizeof(float);
        }
        EXPECT_EQ(bytes_fetched(tiers, limits), expected);
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
