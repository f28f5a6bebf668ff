// Proves that a run does not grow: between an early step and the last one, resident memory,
// mappings, file descriptors, threads, tier bytes and swap file bytes stay the same. 1,000 steps
// with ARTESIAN_SOAK=1, compared with step 100; else 120 steps, compared with step 40. Resident
// memory may grow by 1 MiB, for the allocator's own variation: a leak of 2 KiB a step would show.
// Everything else must be equal.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/support/baseline.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

using test_support::Baseline;
using test_support::status_kib;

constexpr std::size_t growth_kib_max = 1 << 10;

struct Footprint {
  std::size_t rss_kib = 0;
  std::size_t maps = 0;
  Baseline process;
  std::uint64_t device = 0, host = 0;  // peaks of the tiers
  std::uint64_t files = 0;             // bytes below the nvme paths

  void print(std::uint64_t step) const {
    std::fprintf(stderr,
                 "soak: step %llu: RSS %zu KiB, %zu maps, %zu descriptors, %zu threads, device "
                 "%llu, host %llu, swap %llu bytes\n",
                 static_cast<unsigned long long>(step), rss_kib, maps, process.descriptors,
                 process.threads, static_cast<unsigned long long>(device),
                 static_cast<unsigned long long>(host), static_cast<unsigned long long>(files));
  }
};

class Soak : public Equality, public testing::WithParamInterface<int> {
 protected:
  Soak() : Equality(tiny) { at::set_num_threads(1); }

  Footprint footprint(const StepResult& result) const {
    Footprint now;
    now.rss_kib = status_kib("VmRSS");
    now.maps = test_support::map_count();
    now.process = Baseline::now();
    now.device = result.peak_device;
    now.host = result.peak_host;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (entry.is_regular_file()) now.files += entry.file_size();
    }
    return now;
  }
};

TEST_P(Soak, StaysAsItWas) {
  const bool all = std::getenv("ARTESIAN_SOAK") != nullptr;
  const std::uint64_t steps = all ? 1000 : 120;
  const std::uint64_t early = all ? 100 : 40;
  // Everything on NVMe, a medium budget, look-ahead, two micro-batches.
  const Choice run{2, 2, 1, 1, 1, 1, 1, 0, 1, 1, 0, GetParam(), 1, 0};
  const Config config = config_of(run);
  auto engine = Engine::create(module_of(run), config, {});
  ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
  RandomWeights weights(module_of(run).parameters(), 1);
  ASSERT_TRUE((*engine)->initialize(weights).has_value());
  TokenBatch batch(scale.samples, scale.length);
  Footprint before;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      for (std::size_t at = 0; at < batch.ids().size(); ++at) {
        const std::uint64_t drawn = random_word(71, step + micro, at) % scale.vocab;
        batch.ids()[at] = batch.targets()[at] = static_cast<std::int64_t>(drawn);
      }
      ASSERT_TRUE((*engine)->forward(batch.batch()).has_value());
      ASSERT_TRUE((*engine)->backward().has_value());
    }
    const auto result = (*engine)->step();
    ASSERT_TRUE(result.has_value()) << result.error().to_string();
    if (step == early) before = footprint(*result);
    if (step % (steps / 10) == 0) footprint(*result).print(step);
    if (step != steps) continue;
    const Footprint after = footprint(*result);
    EXPECT_LE(after.rss_kib, before.rss_kib + growth_kib_max);
    // A thread may add an arena. A leak of one mapping in each step exceeds this.
    EXPECT_LE(after.maps, before.maps + (steps - early) / 2);
    EXPECT_LE(Baseline::settled(before.process), before.process);
    EXPECT_EQ(after.device, before.device);
    EXPECT_EQ(after.host, before.host);
    EXPECT_EQ(after.files, before.files);
    EXPECT_GT(after.files, 0u);
  }
  ASSERT_TRUE((*engine)->close().has_value());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Soak, testing::Values(0, 1, 2));  // fp32, bf16, fp16

}  // namespace
}  // namespace artesian::zero3
