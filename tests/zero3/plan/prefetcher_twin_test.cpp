// Proves that the prefetcher makes the decisions of its naive twin, which scans all units and walks
// the trace (naive_prefetcher.h): the same states, pins and addresses after every call and the same
// counts, for random models, rooms, limits, orders and departures. It decides alike over slots
// without memory (zero3/plan/dry_slots.h), by which a step is planned. It handles thousands of
// units, for which scans at each access would take hours.
#include <algorithm>

#include "base/random.h"
#include "tests/zero3/plan/naive_prefetcher.h"
#include "tests/zero3/tiers.h"
#include "zero3/plan/dry_slots.h"

namespace artesian::zero3 {
namespace {

using Accesses = std::vector<AccessOrder::Access>;

constexpr std::uint64_t unlimited = std::uint64_t{1} << 40;

class Zeros final : public WeightSource {
 public:
  Result<void> read(std::uint32_t, std::uint64_t, std::span<float> target) noexcept override {
    std::fill(target.begin(), target.end(), 0.0f);
    return {};
  }
};

template <typename P>
struct Run {
  Run(SmallModel model, const TierOptions& options, const PrefetchLimits& limits)
      : tiers(std::move(model), options), prefetcher(tiers.layout(), *tiers.residency, limits) {
    Zeros weights;
    Optimizer optimizer(*tiers.state, *tiers.residency);
    EXPECT_TRUE(optimizer.initialize(weights, {}).has_value());
  }
  /// Returns the state and place of every unit.
  std::vector<std::uint64_t> units() {
    std::vector<std::uint64_t> all;
    for (std::uint32_t unit = 0; unit < tiers.layout().units.size(); ++unit) {
      const tiering::SlotState state = tiers.residency->state(unit);
      all.push_back(static_cast<std::uint64_t>(state) * 2 + tiers.residency->pinned(unit));
      if (state != tiering::SlotState::Live) continue;
      const std::byte* pool = tiers.state->device_pool().range().data();
      all.push_back(static_cast<std::uint64_t>(tiers.residency->data(unit) - pool));
    }
    return all;
  }

  Tiers tiers;
  P prefetcher;
};

/// The units' slots without memory.
DrySlots dry_slots(const Tiers& tiers) {
  std::vector<DryUnit> units;
  for (const Unit& unit : tiers.layout().units) units.push_back({.slot_bytes = unit.image * 4});
  const std::uint64_t pool = tiers.state->placement().device_pool_bytes;
  return DrySlots(std::move(units), pool, 0, [](const DryMove&) {});
}

/// The prefetcher, its naive twin, and the prefetcher over dry slots, called together.
class Twins {
 public:
  Twins(const SmallModel& model, const TierOptions& options, const PrefetchLimits& limits)
      : product_(model, options, limits),
        naive_(model, options, limits),
        slots_(dry_slots(product_.tiers)),
        dry_(product_.tiers.layout(), slots_, limits) {}

  const Layout& layout() const { return product_.tiers.layout(); }
  bool same() {
    for (std::uint32_t unit = 0; unit < layout().units.size(); ++unit) {
      const tiering::Residency& residency = *product_.tiers.residency;
      if (slots_.state(unit) != residency.state(unit)) return false;
      if (slots_.pinned(unit) != residency.pinned(unit)) return false;
    }
    return product_.units() == naive_.units() && same_counts(naive_.prefetcher.statistics()) &&
           same_counts(dry_.statistics());
  }
  bool same_counts(const FetchStatistics& expected) const {
    const FetchStatistics& got = product_.prefetcher.statistics();
    return got.demand == expected.demand && got.prefetched == expected.prefetched &&
           got.reused == expected.reused && got.live_parameters_max == expected.live_parameters_max;
  }
  /// True if the call ends alike on all three, and leaves them in the same state.
  template <typename Call>
  bool alike(const Call& call) {
    const bool done = call(product_.prefetcher);
    const bool naive_done = call(naive_.prefetcher);
    return call(dry_) == done && naive_done == done && same();
  }
  /// True if the first `length` accesses of a step ran alike, and its end, unless it is broken off.
  bool step(const Accesses& accesses, std::size_t length, bool broken_off) {
    product_.prefetcher.begin_step();
    naive_.prefetcher.begin_step();
    dry_.begin_step();
    if (!run(accesses, length)) return false;
    const StepEnd end = random_word(35, draw_, length) % 3 == 0 ? StepEnd::Early : StepEnd::Whole;
    return broken_off || alike([&](auto& each) { return each.end_step(end).has_value(); });
  }
  bool run(const Accesses& accesses, std::size_t length) {
    for (std::size_t index = 0; index < length; ++index) {
      const AccessOrder::Access& access = accesses[index];
      if (!alike([&](auto& each) { return each.enter(access).has_value(); })) return false;
      if (!alike([&](auto& each) { return each.leave(access).has_value(); })) return false;
      const std::uint64_t chance = random_word(33, draw_, draw_) % 16;
      ++draw_;
      if (chance == 0 && !evaluating_ && !evaluate(accesses, index)) return false;
      if (chance == 1) rewind();
    }
    return true;
  }
  /// Runs the first stages as evaluations: one or several passes. The last may stay open until a
  /// step's access, or until its next pass begins.
  bool evaluate(const Accesses& accesses, std::size_t length) {
    const auto begin = [&](Course course) {
      return alike([&](auto& each) { return each.begin_pass(course).has_value(); });
    };
    evaluating_ = true;
    bool ran = true;
    for (std::uint64_t pass = random_word(34, draw_, 0) % 3 + 1; ran && pass != 0; --pass) {
      ran = begin(Course::Evaluations) && run(accesses, length);
      if (random_word(34, draw_, 1) % 8 == 0) ran = ran && run(accesses, length);  // not begun
    }
    evaluating_ = false;
    return ran && begin(Course::Steps);
  }
  void rewind() {
    const std::size_t position = product_.prefetcher.position() / 2;
    EXPECT_EQ(naive_.prefetcher.position() / 2, position);
    product_.prefetcher.rewind(position);
    naive_.prefetcher.rewind(position);
    dry_.rewind(position);
  }
  bool look_ahead_to_next_step() {
    return alike([](auto& each) { return each.look_ahead_to_next_step().has_value(); });
  }

 private:
  Run<Prefetcher> product_;
  Run<NaivePrefetcher> naive_;
  DrySlots slots_;
  Prefetcher dry_;
  std::uint64_t draw_ = 0;
  bool evaluating_ = false;
};

/// `stages` stages of one to three of `units` parameters, some shared; each its own unit or not.
SmallModel random_model(std::uint64_t seed, std::uint64_t units, std::uint64_t stages) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random_word(31, seed, draw++) % bound; };
  SmallModel model;
  for (std::uint64_t index = 0; index < units; ++index) {
    model.parameters.push_back({.name = "p" + std::to_string(index),
                                .shape = {static_cast<std::int64_t>(1 + below(6000))}});
  }
  for (std::uint64_t index = 0; index < stages; ++index) {
    StageSpec stage{.name = "s" + std::to_string(index), .parameters = {}, .lookup = {}};
    for (std::uint64_t count = 1 + below(3); count != 0; --count) {
      const auto parameter = static_cast<std::uint32_t>(below(units));
      if (std::find(stage.parameters.begin(), stage.parameters.end(), parameter) ==
          stage.parameters.end()) {
        stage.parameters.push_back(parameter);
      }
    }
    model.stages.push_back(std::move(stage));
  }
  for (std::uint32_t parameter = 0; parameter < units; ++parameter) {  // each is used
    auto& stage = model.stages[parameter % stages].parameters;
    if (std::find(stage.begin(), stage.end(), parameter) == stage.end()) stage.push_back(parameter);
  }
  return model;
}

std::uint64_t least_device_bytes(const SmallModel& model) {
  Config config;
  config.zero.stage = 3;
  config.zero.offload_param.device = config.zero.offload_optimizer.device = Offload::Nvme;
  config.zero.offload_param.max_in_cpu = config.zero.param_persistence_threshold = 0;
  std::uint64_t bytes = 4096;
  while (!make_placement({.parameters = &model.parameters,
                          .stages = &model.stages,
                          .config = &config,
                          .device_bytes = bytes,
                          .host_bytes = unlimited})
              .has_value()) {
    bytes += 4096;
  }
  return bytes;
}

/// Leaves some accesses out, inserts others, and moves parts to other places.
template <typename Below>
void depart(Accesses& accesses, const Accesses& stages, const Below& below) {
  const std::uint64_t one_in = 2 + below(10);
  Accesses departed;
  for (const AccessOrder::Access& access : accesses) {
    if (below(one_in) == 0) departed.push_back(stages[below(stages.size())]);
    if (below(one_in) != 0) departed.push_back(access);
  }
  if (departed.size() > 2 && below(3) == 0) {
    const auto middle = static_cast<std::ptrdiff_t>(1 + below(departed.size() - 1));
    std::rotate(departed.begin(), departed.begin() + middle, departed.end());
  }
  accesses = departed;
}

TEST(PrefetcherTwin, DecidesAlikeOnRandomTraces) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) { return random_word(32, seed, draw++) % bound; };
    const SmallModel model = random_model(seed, 2 + below(12), 2 + below(12));
    const TierOptions options{.device_bytes = least_device_bytes(model) + 4096 * below(12)};
    const auto limit = [&] { return below(3) == 0 ? unlimited : 1024 * below(30); };
    Twins twins(model, options, {limit(), limit(), limit()});
    Accesses accesses = twins.layout().stages;
    const Accesses& stages = twins.layout().stages;
    if (below(4) != 0) accesses.insert(accesses.end(), stages.rbegin(), stages.rend());
    for (int step = 0; step < (seed % 10 == 0 ? 40 : 7); ++step) {
      std::size_t length = accesses.size();
      if (below(3) == 0) std::swap(accesses[below(length)], accesses[below(length)]);
      if (below(5) == 0) length = 1 + below(length);  // ends early, or departs permanently
      if (below(8) == 0) accesses.resize(length);
      Accesses departed(accesses.begin(), accesses.begin() + static_cast<std::ptrdiff_t>(length));
      if (below(2) == 0) depart(departed, stages, below);
      if (departed.empty()) continue;
      ASSERT_TRUE(twins.step(departed, departed.size(), below(6) == 0)) << "step " << step;
      if (below(2) == 0) continue;
      ASSERT_TRUE(twins.look_ahead_to_next_step()) << "step " << step;
    }
  }
}

TEST(PrefetcherTwin, BearsFiveThousandUnits) {
  constexpr std::uint64_t units = 5000;
  SmallModel model;
  for (std::uint32_t index = 0; index < units; ++index) {
    const std::string name = "p" + std::to_string(index);
    model.parameters.push_back({.name = name, .shape = {32}});
    model.stages.push_back({.name = name, .parameters = {index}, .lookup = {}});
  }
  constexpr std::uint64_t memory = std::uint64_t{1} << 30;
  Tiers tiers(model, {.device_bytes = memory, .host_bytes = memory, .home = Offload::Cpu});
  for (const std::uint64_t kept : {units, units / 2}) {  // with room for all, and with evictions
    Prefetcher prefetcher(tiers.layout(), *tiers.residency, {unlimited, kept * 32, unlimited});
    const Accesses& stages = tiers.layout().stages;
    Accesses accesses = stages;
    accesses.insert(accesses.end(), stages.rbegin(), stages.rend());
    for (int step = 0; step < 4; ++step) {
      prefetcher.begin_step();
      prefetcher.reset_statistics();
      for (const AccessOrder::Access& access : accesses) {
        const auto entered = prefetcher.enter(access);
        ASSERT_TRUE(entered.has_value()) << entered.error().to_string();
        ASSERT_TRUE(prefetcher.leave(access).has_value());
      }
      ASSERT_TRUE(prefetcher.end_step().has_value());
    }
    const FetchStatistics& counted = prefetcher.statistics();
    EXPECT_EQ(counted.demand + counted.prefetched + counted.reused, 2 * units * 32);
    EXPECT_LE(counted.demand, 32u);
    EXPECT_EQ(counted.reused == 2 * units * 32, kept == units);
    ASSERT_TRUE(prefetcher.clear().has_value());
  }
}

}  // namespace
}  // namespace artesian::zero3
