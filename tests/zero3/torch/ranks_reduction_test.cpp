// Proves what `artesian.reduction` fast and communication_data_type make of the gradients that
// ranks send each other: fewer bytes, to the byte as planned, results that are close to exact ones,
// and the same on all ranks.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero3/torch/ranks_harness.h"

namespace artesian::zero3 {
namespace {

using Case = RankCase;
class RanksReduce : public RanksHarness {
 protected:
  struct Spilling {
    std::string digest;
    std::ptrdiff_t units = 0;  // those whose gradients spill
  };
  /// Trains with the least host memory, in which not all gradients have room.
  Spilling train_spilling(const Case& each, comm::Group& group, std::uint64_t all) {
    Spilling found;
    auto made = make(each, &group, all, [&](Config& config) {
      config.artesian.host_memory =
          least(&PlacementRequest::host_bytes, each, config, *config.artesian.device_memory);
    });
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    if (!made.has_value()) return {};
    Engine& engine = *made->engine;
    std::vector<StepResult> steps;
    for (std::uint64_t step = 0; step < scale.steps; ++step) {
      const auto batches = micro_batches(step, all, group.rank(), group.ranks());
      EXPECT_TRUE(run_micro_batches(engine, batches, true));
      auto result = engine.step();
      EXPECT_TRUE(result.has_value()) << result.error().to_string();
      if (!result.has_value()) return {};
      steps.push_back(std::move(result).value());
    }
    const auto& units = engine.placement().units;
    found.units = std::count_if(units.begin(), units.end(), [](const UnitPlacement& unit) {
      return unit.grad == tiering::Tier::Nvme;
    });
    found.digest = digest_of(engine, steps);
    EXPECT_TRUE(engine.close().has_value());
    return found;
  }
};

/// With `artesian.reduction` fast, ranks send gradients once a step. Sums are made in another
/// order, so the bits are others than those of one rank, but equal on all ranks.
TEST_F(RanksReduce, FastSendsGradientsOnceAStepAsPlanned) {
  for (std::uint32_t ranks = 2; ranks <= 4; ++ranks) {
    for (int params = 0; params < 3; ++params) {
      const Case exact{.ranks = ranks,
                       .optimizer = (params + static_cast<int>(ranks)) % 3,
                       .params = params,
                       .dtype = params % 2,
                       .accumulation = 1 + params % 2,
                       .head = static_cast<int>(ranks) % 2,
                       .schedule = 0,
                       .tight = ranks == 3};
      Case fast = exact;
      fast.fast = true;
      SCOPED_TRACE(testing::Message() << ranks << " ranks, params " << params);
      const std::uint64_t micro_batches = std::uint64_t{1} << exact.accumulation;
      LocalRanks shared(ranks);
      LocalRanks others(ranks);
      std::vector<Crossing> moved(ranks);
      run_ranks(shared, [&](comm::Group& group) {
        moved[group.rank()] = expect_as_planned(fast, static_cast<test_support::LocalGroup&>(group),
                                                ranks * micro_batches);
      });
      run_ranks(others, [&](comm::Group& group) {
        const Crossing of_exact = expect_as_planned(
            exact, static_cast<test_support::LocalGroup&>(group), ranks * micro_batches);
        EXPECT_GT(moved[group.rank()].gradients, 0u);
        EXPECT_EQ(moved[group.rank()].gradients * micro_batches, of_exact.gradients);
        EXPECT_EQ(moved[group.rank()].parameters, of_exact.parameters);
      });
      if (HasFailure()) return;
    }
  }
}

TEST_F(RanksReduce, FastAddsToGradientsThatSpill) {
  for (const std::uint32_t ranks : {2u, 3u}) {
    for (const bool fast : {false, true}) {
      const Case each{.ranks = ranks,
                      .optimizer = 2,
                      .params = 2,
                      .dtype = 1,
                      .accumulation = 1,
                      .head = 1,
                      .schedule = 0,
                      .fast = fast};
      SCOPED_TRACE(testing::Message() << ranks << " ranks" << (fast ? ", fast" : ""));
      const Outcome roomy = run_all(each);
      LocalRanks shared(ranks);
      run_ranks(shared, [&](comm::Group& group) {
        const Spilling found = train_spilling(each, group, 2 * ranks);
        if (found.digest.empty()) shared.leave(group.rank());
        EXPECT_EQ(found.digest, roomy.digest);
        EXPECT_GT(found.units, 1);
      });
      if (HasFailure()) return;
    }
  }
}

/// communication_data_type.
TEST_F(RanksReduce, TheTypeOnTheWayDecidesTheBytes) {
  const auto gradients = [&](const Case& each) {
    LocalRanks shared(2);
    std::uint64_t bytes = 0;
    run_ranks(shared, [&](comm::Group& group) {
      const Crossing moved =
          expect_as_planned(each, static_cast<test_support::LocalGroup&>(group), 4);
      if (group.rank() == 0) bytes = moved.gradients;
    });
    return static_cast<double>(bytes);
  };
  const Case wide{.ranks = 2, .optimizer = 1, .params = 1, .dtype = 0, .accumulation = 1};
  Case narrow = wide;
  narrow.sent = DType::BFloat16;
  const double whole = gradients(wide);
  EXPECT_NEAR(gradients(narrow), whole / 2, whole / 50);  // headers
  const Outcome exact = run_all(wide);
  const Outcome rounded = run_all(narrow);
  EXPECT_NE(rounded.digest, exact.digest);
  for (std::size_t step = 0; step < exact.steps.size(); ++step) {
    EXPECT_NEAR(rounded.steps[step].loss, exact.steps[step].loss, 0.01 * exact.steps[step].loss);
  }
  // Sums of 16-bit gradients are sent in fp32 if told to, single ones have nothing to lose.
  const Case half{.ranks = 2, .optimizer = 1, .params = 1, .dtype = 1, .accumulation = 1};
  Case same = half;
  same.sent = DType::Float32;
  expect_same(run_all(same), run_all(half));
  same.sent = DType::Float16;
  LocalRanks shared(2);
  run_ranks(shared, [&](comm::Group& group) {
    const auto refused = make(same, &group, 4);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message.find("communication_data_type fp16 with bf16 parameters"),
              std::string::npos)
        << refused.error().message;
  });
}

TEST_F(RanksReduce, FastIsAlikeOnAllRanksAndCloseToExact) {
  std::uint64_t draw = 0;
  std::size_t differ = 0;
  for (int dtype = 0; dtype < 4; ++dtype) {
    for (int params = 0; params < 3; ++params) {
      const auto chance = [&](std::uint64_t values) {
        return static_cast<int>(random_word(74, 0, draw++) % values);
      };
      Case each{.ranks = static_cast<std::uint32_t>(2 + chance(3)),
                .optimizer = chance(3),
                .params = params,
                .dtype = dtype,
                .accumulation = 1 + chance(2),
                .head = chance(2),
                .schedule = chance(4),
                .stage = params == 0 ? chance(4) : 3,
                .delays = chance(3) == 0 ? 1u : 0u,
                .device = params < 2 && chance(2) == 0
                              ? std::optional(SeparateDevice::Order::Random)
                              : std::nullopt};
      SCOPED_TRACE(testing::Message() << each.ranks << " ranks, params " << params << ", optimizer "
                                      << each.optimizer << ", dtype " << dtype << ", head "
                                      << each.head << ", schedule " << each.schedule);
      const Outcome exact = run_all(each);
      each.fast = true;
      const Outcome fast = run_all(each);
      ASSERT_EQ(fast.steps.size(), exact.steps.size());
      for (std::size_t step = 0; step < fast.steps.size(); ++step) {
        ASSERT_TRUE(std::isfinite(fast.steps[step].loss));
        EXPECT_NEAR(fast.steps[step].loss, exact.steps[step].loss, 0.01 * exact.steps[step].loss);
        if (exact.steps[step].overflow || fast.steps[step].overflow) break;  // by the loss scale
        EXPECT_NEAR(fast.steps[step].grad_norm, exact.steps[step].grad_norm,
                    0.01 * exact.steps[step].grad_norm);
      }
      differ += fast.digest != exact.digest ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(differ, 4u);
  // With one micro-batch a step there is nothing to be added otherwise.
  const Case one{.ranks = 2, .optimizer = 1, .dtype = 1};
  Case same = one;
  same.fast = true;
  expect_same(run_all(same), run_all(one));
}

}  // namespace
}  // namespace artesian::zero3
