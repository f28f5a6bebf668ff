// Proves the first promise: placement, budgets, block size, prefetch limits, persistence, sub-group
// size, buffer count, I/O engine, grouping of micro-batches and split master weights never change a
// bit. A pairwise-covering set of runs (every pair of values of every two factors occurs) trains a
// small GPT-2 for 16 steps. Losses, loss scales, gradient norms and the final digest must equal
// those of the run of the same dtype and accumulation with everything in memory and whole master
// weights. equality_long_test.cpp runs longer.
#include "tests/zero3/torch/equality.h"

#include <ATen/Parallel.h>

#include <map>

#include "tests/support/separate_device.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;

/// A covering set by greedy choice: each new run is the best of many random ones.
std::vector<Choice> pairwise_runs() {
  std::map<std::array<int, 4>, bool> open;
  const auto for_pairs = [](const Choice& run, const auto& visit) {
    for (int a = 0; a < static_cast<int>(factor_count); ++a) {
      for (int b = a + 1; b < static_cast<int>(factor_count); ++b) {
        visit(std::array<int, 4>{a, run[static_cast<std::size_t>(a)], b,
                                 run[static_cast<std::size_t>(b)]});
      }
    }
  };
  for (int a = 0; a < static_cast<int>(factor_count); ++a) {
    for (int b = a + 1; b < static_cast<int>(factor_count); ++b) {
      for (int i = 0; i < levels[static_cast<std::size_t>(a)]; ++i) {
        for (int j = 0; j < levels[static_cast<std::size_t>(b)]; ++j) open[{a, i, b, j}] = true;
      }
    }
  }
  std::vector<Choice> runs;
  std::uint64_t draw = 0;
  while (!open.empty()) {
    Choice best{};
    std::size_t best_gain = 0;
    for (int candidate = 0; candidate < 200; ++candidate) {
      Choice run{};
      for (std::size_t factor = 0; factor < factor_count; ++factor) {
        run[factor] = static_cast<int>(random_word(7, 0, draw++) %
                                       static_cast<std::uint64_t>(levels[factor]));
      }
      if (candidate == 0) {  // at least one open pair, so that the loop ends
        const auto& pair = open.begin()->first;
        run[static_cast<std::size_t>(pair[0])] = pair[1];
        run[static_cast<std::size_t>(pair[2])] = pair[3];
      }
      std::size_t gain = 0;
      for_pairs(run, [&](const std::array<int, 4>& pair) { gain += open.count(pair); });
      if (gain > best_gain) {
        best = run;
        best_gain = gain;
      }
    }
    for_pairs(best, [&](const std::array<int, 4>& pair) { open.erase(pair); });
    runs.push_back(best);
  }
  return runs;
}

TEST_F(Equality, EveryPlacementAndLimitGivesTheSameBits) {
  auto runs = pairwise_runs();
  for (const int dtype : {1, 3}) {  // of each kind of bf16 one with some of the state on NVMe
    Choice run{dtype == 1 ? 2 : 1, 2, 3, 0, 1, 1, 1, 1, 0, 1, 1, dtype, 1, 1};
    run[Schedule] = 2;
    runs.push_back(run);
  }
  for (const int home : {1, 2}) {  // inputs kept where they are computed, or on NVMe
    Choice run{home, home, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 2, 1};
    run[Schedule] = 4;
    runs.push_back(run);
  }
  std::map<std::array<int, 3>, Outcome> references;  // everything in memory, no fetches
  for (const Choice& run : runs) {
    const std::array<int, 3> group{run[Dtype], run[Accumulation], run[Head]};
    if (references.count(group) != 0) continue;
    Choice in_memory{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]};
    in_memory[Masters] = 1;
    references[group] = train(in_memory);
  }
  ASSERT_LE(runs.size() + references.size(), 64u);
  int splits = 0;
  int split_masters = 0;
  std::array<int, tiering::tier_count> kept{};  // runs with inputs in each tier
  for (const Choice& run : runs) {
    SCOPED_TRACE(describe(run));
    const Outcome& reference = references[{run[Dtype], run[Accumulation], run[Head]}];
    const Outcome outcome = train(run);
    expect_same(outcome, reference);
    if (HasFatalFailure()) return;
    splits += outcome.split ? 1 : 0;
    split_masters += outcome.split_masters ? 1 : 0;
    for (std::size_t tier = 0; tier < kept.size(); ++tier) kept[tier] += outcome.inputs[tier] != 0;
  }
  EXPECT_GE(splits, 3);
  EXPECT_GE(split_masters, 6);
  for (const int count : kept) EXPECT_GE(count, 1);
  std::printf("%zu runs, %d with split state, %d with split master weights\n", runs.size(), splits,
              split_masters);
}

class TinyEquality : public Equality {
 protected:
  TinyEquality() : Equality(tiny), threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~TinyEquality() override { at::set_num_threads(threads_); }

 private:
  const int threads_;
};

TEST_F(TinyEquality, HoldsForEveryOptimizer) {
  int split_masters = 0;
  std::ptrdiff_t on_device = 0;  // units
  struct Kind {
    OptimizerType type;
    DType moments = DType::Float32;
  };
  for (const auto& [type, moments] :
       {Kind{OptimizerType::Sgd}, Kind{OptimizerType::Adagrad}, Kind{OptimizerType::RmsProp},
        Kind{OptimizerType::Lion}, Kind{OptimizerType::Lamb}, Kind{OptimizerType::Muon},
        Kind{OptimizerType::Adam, DType::BFloat16}}) {
    for (int dtype = 0; dtype < 3; ++dtype) {
      if (moments != DType::Float32 && dtype == 2) continue;  // the config refuses fp16
      Choice in_memory{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, dtype, 1, dtype % 2};
      in_memory[Masters] = 1;
      Outcome reference;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        const auto stream = 80 + static_cast<std::uint64_t>(type);
        Choice run = seed == 0 ? in_memory : random_choice(stream, 10 * seed + dtype);
        for (const Factor same : {Dtype, Accumulation, Head}) run[same] = in_memory[same];
        SCOPED_TRACE(describe(run));
        SeparateDevice device(SeparateDevice::Order::Late, seed);
        device.micro_batches_at_once = micro_batches_at_once(run);
        const bool by_host =
            type == OptimizerType::Lamb || type == OptimizerType::Muon || moments != DType::Float32;
        separate_device = seed == 3;  // with room for some units' updates
        Config config = config_of(run);
        if (separate_device) *config.artesian.device_memory += 400'000;
        config.optimizer.type = type;
        config.artesian.moments = moments;
        if (type == OptimizerType::Muon) *config.artesian.host_memory += 400'000;
        config.optimizer.nesterov = true;
        config.optimizer.muon_lr = 0.01;
        EngineOptions options;
        if (separate_device) options.backend = &device;
        const Outcome outcome = train(run, config, options);
        on_device += outcome.updated_by_device;
        EXPECT_TRUE(!by_host || outcome.updated_by_device == 0);
        EXPECT_EQ(device.races, 0u);
        if (seed == 0) reference = outcome;
        expect_same(outcome, reference);
        if (HasFatalFailure()) return;
        split_masters += outcome.split_masters ? 1 : 0;
      }
    }
  }
  EXPECT_GE(split_masters, 4);
  EXPECT_GE(on_device, 4);
}

TEST_F(TinyEquality, WithInputsInAnyTier) {
  Choice run{2, 2, 0, 2, 0, 2, 2, 2, 2, 2, 0, 1, 2, 0};
  const Outcome reference = train(run);
  run[Schedule] = 4;
  const std::uint64_t inputs = 4096 * 4 * 4;  // a page of each stage and micro-batch
  Config config = config_of(run);
  const std::uint64_t least = *config.artesian.host_memory;
  const auto kept_in_host = [&](std::uint64_t host_bytes) {
    return make_placement({.parameters = &module_of(run).parameters(),
                           .stages = &module_of(run).stages(),
                           .config = &config,
                           .compute_dtype = *config.artesian.compute_dtype,
                           .device_bytes = *config.artesian.device_memory,
                           .host_bytes = host_bytes,
                           .input_elements = input_elements(module_of(run)),
                           .activation_bytes = *config.artesian.activation_memory})
        .value()
        .inputs.bytes_in(Tier::Host);
  };
  std::uint64_t enough_for_some = least;
  while (kept_in_host(enough_for_some) < inputs / 2) enough_for_some += 4096;
  // Room for none of them, for some, for all.
  for (const std::uint64_t host : {least, enough_for_some, everything}) {
    SCOPED_TRACE(host);
    config.artesian.host_memory = host;
    const Outcome outcome = train(run, config);
    expect_same(outcome, reference);
    const std::uint64_t in_host = outcome.inputs[static_cast<std::size_t>(Tier::Host)];
    EXPECT_EQ(in_host + outcome.inputs[static_cast<std::size_t>(Tier::Nvme)], inputs);
    EXPECT_EQ(in_host, kept_in_host(host));
    EXPECT_EQ(in_host == 0, host == least);
    EXPECT_EQ(in_host == inputs, host == everything);
  }
}

TEST_F(Equality, Fp16OverflowsAndGrowsAndLearnsMeanwhile) {
  const Outcome outcome = train({2, 2, 2, 2, 1, 2, 2, 1, 2, 2, 0, 2, 0, 0});
  int overflows = 0;
  int growths = 0;
  for (std::size_t step = 1; step < outcome.steps.size(); ++step) {
    overflows += outcome.steps[step - 1].overflow ? 1 : 0;
    growths += outcome.steps[step].loss_scale > outcome.steps[step - 1].loss_scale ? 1 : 0;
  }
  EXPECT_GE(overflows, 3);
  EXPECT_GE(growths, 2);
}

}  // namespace
}  // namespace artesian::zero3
