// Proves that the prefetcher gives every access its parameters, for any limits, room and order of
// accesses; that it counts how it found them; that limits are kept; and that with room for some of
// the units it fetches as seldom as Belady's rule, simulated here.
#include "zero3/plan/prefetcher.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/random.h"
#include "tests/zero3/tiers.h"
#include "zero3/plan/dry_slots.h"

namespace artesian::zero3 {
namespace {

using Accesses = std::vector<AccessOrder::Access>;

constexpr std::uint64_t unlimited = std::uint64_t{1} << 40;

float value_of(std::uint32_t parameter, std::uint64_t index) {
  return static_cast<float>(parameter * 100'000 + index);
}

class Numbered final : public WeightSource {
 public:
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override {
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = value_of(parameter, first + i);
    return {};
  }
};

/// Stages that use one parameter each, all of `numel` elements.
SmallModel equal_units(int count, std::int64_t numel) {
  SmallModel model;
  for (int index = 0; index < count; ++index) {
    const std::string name = "p" + std::to_string(index);
    model.parameters.push_back({.name = name, .shape = {numel}});
    model.stages.push_back(
        {.name = name, .parameters = {static_cast<std::uint32_t>(index)}, .lookup = {}});
  }
  return model;
}

/// A prefetcher over filled tiers, called as the engine calls it.
class Steps {
 public:
  Steps(SmallModel model, const TierOptions& options, const PrefetchLimits& limits)
      : tiers(std::move(model), options),
        prefetcher(tiers.layout(), *tiers.residency, limits),
        optimizer_(*tiers.state, *tiers.residency) {
    Numbered weights;
    EXPECT_TRUE(optimizer_.initialize(weights, {}).has_value());
  }

  /// Forward through all stages, then backward.
  Accesses there_and_back() const {
    const Accesses& stages = tiers.layout().stages;
    Accesses accesses = stages;
    accesses.insert(accesses.end(), stages.rbegin(), stages.rend());
    return accesses;
  }
  std::uint64_t numel(const AccessOrder::Access& units) const {
    std::uint64_t sum = 0;
    for (const auto unit : units) sum += tiers.layout().units[unit].numel;
    return sum;
  }
  std::uint64_t numel(const Accesses& accesses) const {
    std::uint64_t sum = 0;
    for (const auto& units : accesses) sum += numel(units);
    return sum;
  }
  /// Runs one step and returns its counts, which always add up to what was accessed.
  FetchStatistics run(const Accesses& accesses) {
    prefetcher.begin_step();
    for (const AccessOrder::Access& units : accesses) {
      const auto entered = prefetcher.enter(units);
      EXPECT_TRUE(entered.has_value()) << entered.error().to_string();
      if (!entered.has_value()) return {};
      for (const auto unit : units) expect_values(unit);
      EXPECT_TRUE(prefetcher.leave(units).has_value());
    }
    EXPECT_TRUE(prefetcher.end_step().has_value());
    const FetchStatistics counted = prefetcher.statistics();
    EXPECT_EQ(counted.demand + counted.prefetched + counted.reused, numel(accesses));
    prefetcher.reset_statistics();
    return counted;
  }

  Tiers tiers;
  Prefetcher prefetcher;

 private:
  void expect_values(std::uint32_t unit) {
    const auto* data = reinterpret_cast<const float*>(prefetcher.data(unit));
    for (const auto parameter : tiers.layout().units[unit].parameters) {
      const ParameterPlace& place = tiers.layout().places[parameter];
      std::uint64_t wrong = 0;
      for (std::uint64_t i = 0; i < place.numel; ++i) {
        wrong += data[place.first + i] != value_of(parameter, i) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0u) << tiers.model.parameters[parameter].name;
    }
  }

  Optimizer optimizer_;
};

SmallModel small() {
  return make_small_model(300, 32, 3);
}

TEST(Prefetcher, ARecordedStepIsAllDemand) {
  Steps steps(small(), {}, {unlimited, unlimited, unlimited});
  const Accesses accesses = steps.there_and_back();
  const FetchStatistics counted = steps.run(accesses);
  EXPECT_EQ(counted.demand, steps.numel(accesses));
}

TEST(Prefetcher, WithRoomForAllEveryUnitIsFetchedOnceAndKept) {
  Steps steps(small(), {}, {unlimited, unlimited, unlimited});
  const Accesses accesses = steps.there_and_back();
  steps.run(accesses);
  std::uint64_t all = 0;
  for (const Unit& unit : steps.tiers.layout().units) all += unit.numel;
  const FetchStatistics second = steps.run(accesses);
  EXPECT_EQ(second.demand, steps.numel(accesses.front()));  // no access before it could look ahead
  EXPECT_EQ(second.prefetched, all - second.demand);
  EXPECT_EQ(second.live_parameters_max, all);
  EXPECT_EQ(steps.run(accesses).reused, steps.numel(accesses));
}

TEST(Prefetcher, LooksAheadToTheNextStep) {
  Steps steps(small(), {}, {unlimited, unlimited, 0});
  const Accesses accesses = steps.there_and_back();
  steps.run(accesses);
  EXPECT_TRUE(steps.prefetcher.look_ahead_to_next_step().has_value());
  EXPECT_EQ(steps.run(accesses).demand, 0u);
}

TEST(Prefetcher, ABucketOfZeroFetchesNothingAhead) {
  Steps steps(small(), {}, {0, unlimited, unlimited});
  const Accesses accesses = steps.there_and_back();
  for (int step = 0; step < 4; ++step) EXPECT_EQ(steps.run(accesses).prefetched, 0u);
}

TEST(Prefetcher, WithoutLiveParametersAllowedEveryAccessIsADemand) {
  Steps steps(small(), {}, {unlimited, 0, unlimited});
  const Accesses accesses = steps.there_and_back();
  std::uint64_t largest = 0;
  for (const auto& units : accesses) largest = std::max(largest, steps.numel(units));
  for (int step = 0; step < 3; ++step) {
    const FetchStatistics counted = steps.run(accesses);
    EXPECT_EQ(counted.prefetched, 0u);
    EXPECT_LE(counted.live_parameters_max, largest);
  }
}

TEST(Prefetcher, MaxLiveBoundsLookAheadAndRetention) {
  constexpr std::uint64_t each = 4096;
  for (const std::uint64_t units : {1u, 2u, 3u, 5u}) {
    Steps steps(equal_units(6, each), {}, {unlimited, units * each, unlimited});
    const Accesses accesses = steps.there_and_back();
    for (int step = 0; step < 4; ++step) {
      const FetchStatistics counted = steps.run(accesses);
      // A demand is never refused: it may exceed the limit by what was kept.
      EXPECT_LE(counted.live_parameters_max, (units + 1) * each) << units;
      // Units kept for later give way to units needed sooner.
      EXPECT_EQ(counted.prefetched > 0, step > 0 && units > 1) << units;
    }
  }
}

TEST(Prefetcher, ReuseDistanceDecidesWhatIsKept) {
  constexpr std::uint64_t each = 4096;
  // Backward of unit 5 - k is 2k accesses after its forward: that many units lie in between.
  for (const std::uint64_t distance : {0u, 2u, 4u}) {
    Steps steps(equal_units(6, each), {}, {0, unlimited, distance * each});
    const Accesses accesses = steps.there_and_back();
    steps.run(accesses);
    steps.run(accesses);
    const FetchStatistics counted = steps.run(accesses);
    // The same from the last backward to the next step's first forward.
    EXPECT_EQ(counted.reused, 2 * (distance / 2 + 1) * each) << distance;
    EXPECT_EQ(counted.demand, (12 - 2 * (distance / 2 + 1)) * each);
  }
}

/// Fetches of one step in the long run, by the rule that evicts the unit needed last.
std::uint64_t belady(const Accesses& step, std::size_t room) {
  std::set<std::uint32_t> kept;
  std::uint64_t misses = 0;
  const std::size_t size = step.size();
  for (std::size_t at = 0; at < 4 * size; ++at) {
    if (at == 3 * size) misses = 0;
    const std::uint32_t unit = step[at % size].front();
    if (kept.insert(unit).second) ++misses;
    if (kept.size() <= room) continue;
    const auto next_use = [&](std::uint32_t candidate) {
      std::size_t ahead = 1;
      while (step[(at + ahead) % size].front() != candidate) ++ahead;
      return ahead;
    };
    std::uint32_t victim = unit;
    for (const auto candidate : kept) {
      if (candidate == unit) continue;
      if (victim == unit || next_use(candidate) > next_use(victim)) victim = candidate;
    }
    kept.erase(victim);
  }
  return misses;
}

TEST(Prefetcher, EvictsWhatIsNeededLast) {
  constexpr std::uint64_t each = 4096;  // elements: a multiple of the image's and the page's
  constexpr std::uint64_t bytes = each * 4;
  for (const std::size_t room : {1u, 2u, 3u, 5u, 8u}) {
    // The budget also covers one stage's gradient.
    Steps steps(equal_units(8, each), {.device_bytes = (room + 1) * bytes},
                {0, unlimited, unlimited});
    const Accesses accesses = steps.there_and_back();
    FetchStatistics counted;
    for (int step = 0; step < 4; ++step) counted = steps.run(accesses);
    EXPECT_EQ(counted.demand, belady(accesses, room) * each) << room;
    EXPECT_LE(counted.live_parameters_max, room * each) << room;
  }
}

/// Room for eight pages; a takes 4, b 3 and c 5. While a is used, b is fetched ahead; when b and c
/// are demanded, it is in the way of c.
TEST(Prefetcher, TellsWhatADemandGivesUpBeforeItIsUsed) {
  constexpr std::uint64_t page = 4096;
  const SmallModel model = equal_units(3, 64);
  const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
  int started = 0;
  DrySlots slots(
      {{.slot_bytes = 4 * page}, {.slot_bytes = 3 * page}, {.slot_bytes = 5 * page}}, 8 * page, 0,
      [&](const DryMove& move) { started += move.to == tiering::SlotState::Fetching ? 1 : 0; });
  Prefetcher prefetcher(layout, slots, {unlimited, unlimited, 0});
  const auto step = [&](bool evaluates) {
    prefetcher.begin_step();
    started = 0;
    for (const AccessOrder::Access& units : Accesses{{0}, {1, 2}}) {
      EXPECT_TRUE(prefetcher.enter(units).has_value());
      EXPECT_TRUE(prefetcher.leave(units).has_value());
      if (!evaluates) continue;
      EXPECT_TRUE(prefetcher.begin_pass(Course::Evaluations).has_value());
      EXPECT_TRUE(prefetcher.enter({2}).has_value());  // then b is out of the way
      EXPECT_TRUE(prefetcher.leave({2}).has_value());
      EXPECT_TRUE(prefetcher.begin_pass(Course::Steps).has_value());
    }
    EXPECT_TRUE(prefetcher.end_step().has_value());
    EXPECT_TRUE(prefetcher.look_ahead_to_next_step().has_value());
    return std::vector<bool>{prefetcher.stays(0), prefetcher.stays(1), prefetcher.stays(2)};
  };
  EXPECT_EQ(step(false), (std::vector<bool>{true, true, true}));  // recorded: nothing was ahead
  for (int round = 0; round < 20; ++round) {
    const std::vector<bool> stays = step(/*evaluates=*/round == 2);
    EXPECT_TRUE(stays[0]) << round;
    EXPECT_FALSE(stays[1]) << round;
  }
  EXPECT_EQ(step(false),
            (std::vector<bool>{true, false, true}));  // c: round 2 left nothing in the way
  EXPECT_EQ(started, 4);  // b once more, c, and a and b for the next step
  EXPECT_TRUE(prefetcher.clear().has_value());
}

/// One unit may be ahead: the next one's reads begin before the wait for the one that is entered,
/// so that the disk never idles between the two.
TEST(Prefetcher, FetchesAheadBeforeItWaitsForWhatIsEntered) {
  const SmallModel model = equal_units(4, 64);
  const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
  std::vector<std::pair<tiering::SlotState, std::uint32_t>> moves;
  DrySlots slots(std::vector<DryUnit>(4, {.slot_bytes = 4096}), 4 * 4096, 0,
                 [&](const DryMove& move) { moves.emplace_back(move.to, move.unit); });
  Prefetcher prefetcher(layout, slots, {1, unlimited, 0});
  for (int step = 0; step < 2; ++step) {
    prefetcher.begin_step();
    moves.clear();
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      EXPECT_TRUE(prefetcher.enter({unit}).has_value());
      EXPECT_TRUE(prefetcher.leave({unit}).has_value());
    }
    EXPECT_TRUE(prefetcher.end_step().has_value());
  }
  using enum tiering::SlotState;
  EXPECT_EQ(moves, (decltype(moves){{Fetching, 0},
                                    {Fetching, 1},
                                    {Live, 0},
                                    {Absent, 0},
                                    {Fetching, 2},
                                    {Live, 1},
                                    {Absent, 1},
                                    {Fetching, 3},
                                    {Live, 2},
                                    {Absent, 2},
                                    {Live, 3},
                                    {Absent, 3}}));
  EXPECT_TRUE(prefetcher.clear().has_value());
}

/// A prefetcher over dry slots: a random model of one or two units a stage, in little room.
class RandomSlots {
 public:
  explicit RandomSlots(std::uint64_t seed)
      : count_(4 + random_word(91, seed, 0) % 6),
        model_(equal_units(static_cast<int>(count_), 64)),
        units_(make_units(seed)),
        layout(make_layout(model_.parameters, model_.stages, {}, 1)),
        used_(count_),
        lost_(count_),
        slots_(units_, room(seed), 0, [this](const DryMove& move) { see(move); }),
        prefetcher(layout, slots_, limits(seed)) {}
  ~RandomSlots() { EXPECT_TRUE(prefetcher.clear().has_value()); }

  /// Returns for each access whether units were evicted before they were used.
  std::vector<bool> step() {
    prefetcher.begin_step();
    for (const AccessOrder::Access& access : accesses_) {
      EXPECT_TRUE(prefetcher.enter(access).has_value());
      for (const auto unit : access) used_[unit] = true;
      EXPECT_TRUE(prefetcher.leave(access).has_value());
    }
    EXPECT_TRUE(prefetcher.end_step().has_value());
    used_.assign(count_, false);
    std::vector<bool> lost = std::exchange(lost_, used_);
    EXPECT_TRUE(prefetcher.look_ahead_to_next_step().has_value());
    return lost;
  }

 private:
  static constexpr std::uint64_t page = 4096;

  std::vector<DryUnit> make_units(std::uint64_t seed) {
    std::vector<DryUnit> units;
    for (std::uint32_t unit = 0; unit < count_; ++unit) {
      units.push_back({.slot_bytes = (1 + random_word(91, seed, 10 + unit) % 5) * page});
      const bool joins =
          unit != 0 && accesses_.back().size() == 1 && random_word(91, seed, 30 + unit) % 2 == 0;
      if (!joins) accesses_.emplace_back();
      accesses_.back().push_back(unit);
      std::uint64_t bytes = 0;
      for (const auto member : accesses_.back()) bytes += units[member].slot_bytes;
      largest_ = std::max(largest_, bytes);
    }
    accesses_.insert(accesses_.end(), accesses_.rbegin(), accesses_.rend());
    return units;
  }
  std::uint64_t room(std::uint64_t seed) const {
    return largest_ + random_word(91, seed, 1) % 6 * page;
  }
  static PrefetchLimits limits(std::uint64_t seed) {
    const auto draw = [&](std::uint64_t index, std::uint64_t count) {
      return random_word(91, seed, index) % count;
    };
    return {draw(2, 4) == 0 ? unlimited : (1 + draw(4, 3)) * 64, unlimited,
            draw(3, 4) == 0 ? draw(5, 6) * 64 : unlimited};
  }
  void see(const DryMove& move) {
    if (move.to == tiering::SlotState::Live) used_[move.unit] = true;
    if (move.to == tiering::SlotState::Absent && !used_[move.unit]) lost_[move.unit] = true;
  }

  const std::uint64_t count_;
  const SmallModel model_;
  Accesses accesses_;
  std::uint64_t largest_ = 0;  // bytes of an access
  const std::vector<DryUnit> units_;

 public:
  const Layout layout;

 private:
  std::vector<bool> used_;
  std::vector<bool> lost_;
  DrySlots slots_;

 public:
  Prefetcher prefetcher;
};

/// Slots of 1 to 5 pages. Their places are as the step before has left them: a unit that is in the
/// way in one step need not be in the next.
TEST(Prefetcher, NothingThatStaysIsGivenUpBeforeItIsUsed) {
  int given_up = 0;
  int now_and_then = 0;  // in some steps, not in others
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomSlots run(seed);
    for (int step = 0; step < 16; ++step) run.step();
    constexpr int seen = 24;
    std::vector<int> times(run.layout.units.size());
    for (int step = 0; step < seen; ++step) {
      std::vector<bool> stays;
      for (std::uint32_t unit = 0; unit < times.size(); ++unit) {
        stays.push_back(run.prefetcher.stays(unit));
      }
      const std::vector<bool> lost = run.step();
      for (std::uint32_t unit = 0; unit < times.size(); ++unit) {
        EXPECT_FALSE(lost[unit] && stays[unit]) << "unit " << unit << " step " << step;
        times[unit] += lost[unit] ? 1 : 0;
      }
    }
    given_up += static_cast<int>(std::ssize(times) - std::ranges::count(times, 0));
    now_and_then +=
        static_cast<int>(std::ranges::count_if(times, [](int often) { return often % seen != 0; }));
  }
  std::printf("%d units given up, %d of them now and then\n", given_up, now_and_then);
  EXPECT_GT(given_up, 100);
  EXPECT_GT(now_and_then, 10);
}

TEST(Prefetcher, ADepartureIsRecordedAnew) {
  Steps steps(small(), {}, {unlimited, unlimited, 0});
  const Accesses usual = steps.there_and_back();
  Accesses other = usual;
  std::rotate(other.begin() + 1, other.begin() + 3, other.begin() + 4);
  const Accesses shorter(usual.begin(), usual.begin() + 4);
  for (const Accesses& changed : {other, shorter}) {
    steps.run(usual);
    EXPECT_GT(steps.run(usual).prefetched, 0u);
    const FetchStatistics departed = steps.run(changed);
    EXPECT_LT(departed.demand, steps.numel(changed));  // the trace was right up to the departure
    steps.run(changed);                                // by now all is recorded
    const FetchStatistics known = steps.run(changed);
    EXPECT_LE(known.demand, steps.numel(changed.front()));
    EXPECT_GT(known.prefetched, 0u);
  }
}

/// The seed decides a model, room from the least that fits, limits, and orders of accesses.
TEST(Prefetcher, AStepThatEndsEarlyCutsTheTrace) {
  Steps steps(small(), {}, {unlimited, unlimited, 0});  // nothing is kept
  const Accesses shorter = steps.there_and_back();
  Accesses longer = shorter;
  longer.insert(longer.end(), shorter.begin(), shorter.end());
  steps.run(longer);
  steps.run(shorter);
  EXPECT_TRUE(steps.prefetcher.look_ahead_to_next_step().has_value());
  EXPECT_EQ(steps.run(shorter).demand, 0u);
  EXPECT_TRUE(steps.prefetcher.look_ahead_to_next_step().has_value());
  const FetchStatistics departed = steps.run(longer);  // its second half was forgotten
  EXPECT_GE(departed.demand, steps.numel(shorter) / 2);
  EXPECT_TRUE(steps.prefetcher.look_ahead_to_next_step().has_value());
  EXPECT_EQ(steps.run(longer).demand, 0u);
}

TEST(Prefetcher, AnyOrderInAnyRoomGetsItsParameters) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) { return random_word(5, seed, draw++) % bound; };
    SmallModel model = make_small_model(static_cast<std::int64_t>(50 + below(300)), 32,
                                        static_cast<int>(1 + below(4)), below(2) == 0);
    if (below(2) == 0) {  // positions beside the embedding, as GPT-2 has them
      model.stages.front().parameters.push_back(
          static_cast<std::uint32_t>(model.parameters.size()));
      model.parameters.push_back({.name = "wpe", .shape = {1 + static_cast<int>(below(200)), 32}});
    }
    TierOptions options;
    Config config;
    config.zero.stage = 3;
    config.zero.offload_param.device = config.zero.offload_optimizer.device = Offload::Nvme;
    config.zero.offload_param.max_in_cpu = config.zero.param_persistence_threshold = 0;
    const auto fits = [&](std::uint64_t bytes) {
      return make_placement({.parameters = &model.parameters,
                             .stages = &model.stages,
                             .config = &config,
                             .device_bytes = bytes,
                             .host_bytes = unlimited})
          .has_value();
    };
    options.device_bytes = 4096;
    while (!fits(options.device_bytes)) options.device_bytes += 4096;
    options.device_bytes += 4096 * below(10);
    const auto limit = [&] { return below(3) == 0 ? unlimited : 1024 * below(20); };
    Steps steps(std::move(model), options, {limit(), limit(), limit()});
    Accesses accesses = steps.there_and_back();
    for (int step = 0; step < 6; ++step) {
      if (below(3) == 0) std::swap(accesses[below(accesses.size())], accesses[0]);
      steps.run(accesses);
      if (below(2) == 0) continue;
      EXPECT_TRUE(steps.prefetcher.look_ahead_to_next_step().has_value());
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
