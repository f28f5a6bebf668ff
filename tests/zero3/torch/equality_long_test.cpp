// Proves equality over time and over all combinations. 100 steps in fp32 on NVMe, with the least
// budget that fits, more, and everything, by each engine, with look-ahead and retention or without:
// each step's loss is bit-equal to that of stage 0 with everything in memory. And the complete
// product of the extremes of all placements and limits, each run with a random dtype, accumulation,
// head and schedule: 4,608 runs with ARTESIAN_SOAK=1, else a sample of them.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

class OneHundredSteps : public Equality {
 protected:
  static Scale long_run() {
    Scale scale = tiny;
    scale.steps = 100;
    return scale;
  }
  OneHundredSteps() : Equality(long_run()) { at::set_num_threads(1); }
};

TEST_F(OneHundredSteps, AnyBudgetAnyEnginePrefetchOnOrOffAsInMemory) {
  Choice in_memory{};
  in_memory[Budget] = 2;
  Config stage_0 = config_of(in_memory);
  stage_0.zero = ZeroConfig{};
  const Outcome reference = train(in_memory, stage_0);
  ASSERT_EQ(reference.steps.size(), 100u);
  for (const int home : {1, 2}) {
    for (const int budget : {0, 1, 2}) {
      for (const int engine : {0, 1, 2}) {
        for (const int prefetch : {0, 2}) {
          if (home == 1 && (engine != 0 || budget == 1)) continue;  // nothing to transfer
          // The other engines run each budget once, and prefetching both on and off.
          if (engine != 0 && (budget + engine) % 2 != prefetch / 2) continue;
          Choice run{};
          run[ParamHome] = run[OptimizerHome] = home;
          run[Budget] = budget;
          run[BlockSize] = run[SubGroup] = run[BufferCount] = 1;
          run[IoEngine] = engine;
          run[Bucket] = run[Live] = run[Reuse] = prefetch;
          SCOPED_TRACE(describe(run));
          const Outcome outcome = train(run);
          expect_same(outcome, reference);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

class EveryExtreme : public Equality {
 protected:
  EveryExtreme() : Equality(tiny) { at::set_num_threads(1); }
};

TEST_F(EveryExtreme, OfEveryFactorWithEveryOther) {
  constexpr std::uint64_t total = 3 * 3 * 512;
  const bool all = std::getenv("ARTESIAN_SOAK") != nullptr;
  std::map<std::array<int, 3>, Outcome> references;
  const std::uint64_t stride = all ? 1 : 241;  // a sample: 20 runs
  for (std::uint64_t index = 0; index < total; index += stride) {
    if (all && index % 64 == 0) {
      std::fprintf(stderr, "equality: %llu of %llu runs\n", static_cast<unsigned long long>(index),
                   static_cast<unsigned long long>(total));
    }
    Choice run{};
    std::uint64_t rest = index;
    const auto take = [&](std::uint64_t count) {
      const auto taken = static_cast<int>(rest % count);
      rest /= count;
      return taken;
    };
    for (const Factor factor : {ParamHome, OptimizerHome}) run[factor] = take(3);
    for (const Factor factor :
         {Budget, BlockSize, Bucket, Live, Reuse, Persistence, SubGroup, BufferCount}) {
      run[factor] = 2 * take(2);
    }
    run[IoEngine] = take(2) * (1 + static_cast<int>(random_word(62, 0, index) % 2));
    for (const Factor factor : {Dtype, Accumulation, Head, Schedule}) {
      const auto drawn = random_word(61, factor, index);
      run[factor] = static_cast<int>(drawn % static_cast<std::uint64_t>(levels[factor]));
    }
    SCOPED_TRACE(describe(run));
    const std::array<int, 3> group{run[Dtype], run[Accumulation], run[Head]};
    if (references.count(group) == 0) {
      references[group] =
          train({0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]});
    }
    const Outcome outcome = train(run);
    expect_same(outcome, references[group]);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace artesian::zero3
