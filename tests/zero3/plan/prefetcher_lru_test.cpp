// Proves that knowing the future is never worse than remembering the past. With the same room, a
// Prefetcher fetches no more elements in a step than an LRU cache, on the steps of models and, on
// demand, on random ones. Residents save no less optimizer state, which passes once a step, than
// such a cache would.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "base/random.h"
#include "tests/zero3/small_model.h"
#include "zero3/plan/dry_slots.h"
#include "zero3/plan/prefetcher.h"
#include "zero3/plan/residents.h"

namespace artesian::zero3 {
namespace {

using Accesses = std::vector<AccessOrder::Access>;

constexpr std::uint64_t unlimited = std::uint64_t{1} << 40;
constexpr int steps = 5;  // the first one records
constexpr std::int64_t size_of_unit = 64;

/// Keeps the units used last, within a capacity.
class LruCache {
 public:
  LruCache(const std::vector<std::uint64_t>& sizes, std::uint64_t capacity)
      : sizes_(sizes), capacity_(capacity) {}

  /// Returns the elements that had to be fetched.
  std::uint64_t use(const AccessOrder::Access& units) {
    std::uint64_t fetched = 0;
    for (const auto unit : units) {
      const auto found = std::find(kept_.begin(), kept_.end(), unit);
      if (found != kept_.end()) {
        kept_.erase(found);
      } else {
        fetched += sizes_[unit];
        held_ += sizes_[unit];
      }
      kept_.push_back(unit);
    }
    while (held_ > capacity_) {
      held_ -= sizes_[kept_.front()];
      kept_.pop_front();
    }
    return fetched;
  }

 private:
  const std::vector<std::uint64_t>& sizes_;
  const std::uint64_t capacity_;
  std::list<std::uint32_t> kept_;  // least recently used first
  std::uint64_t held_ = 0;
};

/// Returns what the last of several steps fetches with an LRU cache.
std::uint64_t fetched_by_lru(const Accesses& step, const std::vector<std::uint64_t>& sizes,
                             std::uint64_t capacity) {
  LruCache cache(sizes, capacity);
  std::uint64_t fetched = 0;
  for (int round = 0; round < steps; ++round) {
    fetched = 0;
    for (const AccessOrder::Access& access : step) fetched += cache.use(access);
  }
  return fetched;
}

/// The same by a Prefetcher whose pool holds `room` units, and that looks `ahead` elements ahead.
std::uint64_t fetched_by_prefetcher(const Accesses& step, const Layout& layout, std::uint64_t room,
                                    std::uint64_t ahead) {
  std::vector<DryUnit> units;
  for (const Unit& unit : layout.units) units.push_back({.slot_bytes = unit.image * 4});
  const std::uint64_t pool_bytes = room * units.front().slot_bytes;
  DrySlots slots(std::move(units), pool_bytes, 0, [](const DryMove&) {});
  Prefetcher prefetcher(layout, slots, {ahead, unlimited, unlimited});
  for (int round = 0; round < steps; ++round) {
    prefetcher.begin_step();
    prefetcher.reset_statistics();
    for (const AccessOrder::Access& access : step) {
      EXPECT_TRUE(prefetcher.enter(access).has_value());
      EXPECT_TRUE(prefetcher.leave(access).has_value());
    }
    EXPECT_TRUE(prefetcher.end_step().has_value());
  }
  const FetchStatistics counted = prefetcher.statistics();
  EXPECT_TRUE(prefetcher.clear().has_value());
  return counted.demand + counted.prefetched;
}

/// Units of one size, a stage each: then evicting the unit needed last is optimal.
SmallModel equal_units(std::uint32_t count) {
  SmallModel model;
  for (std::uint32_t unit = 0; unit < count; ++unit) {
    const std::string name = "p" + std::to_string(unit);
    model.parameters.push_back({.name = name, .shape = {size_of_unit}});
    model.stages.push_back({.name = name, .parameters = {unit}, .lookup = {}});
  }
  return model;
}

TEST(PrefetcherBesideLru, FetchesNoMoreInTheStepsOfModelsHoweverFarItLooksAhead) {
  for (const std::uint32_t stages : {2u, 3u, 5u, 12u}) {
    const SmallModel model = equal_units(stages);
    const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
    const std::vector<std::uint64_t> sizes(stages, size_of_unit);
    for (int micro_batches = 1; micro_batches <= 4; micro_batches *= 2) {
      Accesses step;
      for (int micro = 0; micro < micro_batches; ++micro) {
        step.insert(step.end(), layout.stages.begin(), layout.stages.end());
        step.insert(step.end(), layout.stages.rbegin(), layout.stages.rend());
      }
      for (std::uint64_t room = 1; room <= stages; ++room) {
        const auto lru = fetched_by_lru(step, sizes, room * size_of_unit);
        for (const std::uint64_t ahead : {std::uint64_t{0}, 2 * sizes[0], unlimited}) {
          EXPECT_LE(fetched_by_prefetcher(step, layout, room, ahead), lru)
              << stages << " stages, " << micro_batches << " micro-batches, room for " << room
              << ", " << ahead << " elements ahead";
        }
      }
    }
  }
}

// A unit fetched ahead may displace a unit needed later, one access too early: in a random order
// that may cost a fetch. On demand it never does.
TEST(PrefetcherBesideLru, FetchesNoMoreOnDemandInRandomSteps) {
  int fewer = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) { return random_word(51, seed, draw++) % bound; };
    const auto units = static_cast<std::uint32_t>(2 + below(10));
    const SmallModel model = equal_units(units);
    const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
    const std::vector<std::uint64_t> sizes(units, size_of_unit);
    Accesses step;
    for (std::uint64_t count = units + below(30); count != 0; --count) {
      step.push_back({static_cast<std::uint32_t>(below(units))});
    }
    const std::uint64_t room = 1 + below(units);
    const auto lru = fetched_by_lru(step, sizes, room * size_of_unit);
    const auto ours = fetched_by_prefetcher(step, layout, room, 0);
    EXPECT_LE(ours, lru);
    fewer += ours < lru ? 1 : 0;
  }
  EXPECT_GT(fewer, 100);
}

TEST(ResidentsBesideLru, SaveNoLessOfTheOptimizerState) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) { return random_word(52, seed, draw++) % bound; };
    std::vector<Candidate> candidates;
    std::vector<std::uint64_t> sizes;
    Accesses step;
    std::uint64_t all = 0;
    for (auto unit = static_cast<std::uint32_t>(0); unit < 2 + below(10); ++unit) {
      sizes.push_back(1 + below(100));
      candidates.push_back({.unit = unit, .bytes = sizes.back(), .moves = 2});
      step.push_back({unit});
      all += sizes.back();
    }
    for (std::uint64_t room = 0; room <= all + 10; room += 7) {
      std::uint64_t kept = 0;
      for (const auto& each : choose_residents(candidates, {room, unlimited})) kept += each.bytes;
      EXPECT_LE(all - kept, fetched_by_lru(step, sizes, room)) << room;
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
