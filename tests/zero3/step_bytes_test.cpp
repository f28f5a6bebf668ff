// Proves that what a step moves to and from NVMe is what step_bytes.h says, to the byte: a small
// GPT-2 trains with all parameters gathered for good, so that reads and writes are those of
// gradients and update alone; at budgets from the least host memory to one in which everything
// fits, in 16 bit and fp32, with tied and untied heads, one micro-batch and several, persistent
// parameters and none.
#include "zero3/step_bytes.h"

#include <ATen/Parallel.h>

#include <set>

#include "tests/zero3/budgets.h"
#include "tests/zero3/equality.h"

namespace artesian::zero3 {
namespace {

class StepBytesOf : public Equality {
 protected:
  StepBytesOf() : Equality(tiny) { at::set_num_threads(1); }

  /// Ids that reach every row of the table once in a step.
  void fill(TokenBatch& batch) {
    for (std::size_t at = 0; at < batch.ids().size(); ++at) {
      batch.ids()[at] = batch.targets()[at] = static_cast<std::int64_t>(next_++ % scale.vocab);
    }
  }

  void expect_bytes(const Choice& run, const Config& config) {
    Module& module = module_of(run);
    auto engine = Engine::create(module, config, {});
    ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
    RandomWeights weights(module.parameters(), 1);
    ASSERT_TRUE((*engine)->initialize(weights).has_value());
    const Placement& plan = (*engine)->placement();
    const StepBytes update = optimizer_bytes(plan);
    const StepBytes gradients = gradient_bytes(plan, module.stages(), config.accumulation_steps);
    TokenBatch batch(config.micro_batch_size, scale.length);
    for (int step = 1; step <= 5; ++step) {
      for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
        fill(batch);
        ASSERT_TRUE((*engine)->forward(batch.batch()).has_value());
        ASSERT_TRUE((*engine)->backward().has_value());
      }
      const auto result = (*engine)->step();
      ASSERT_TRUE(result.has_value()) << result.error().to_string();
      ASSERT_FALSE(result->overflow);
      if (step < 3) continue;  // the first knows no future, the second gathers for good
      EXPECT_EQ(result->fetch_demand + result->fetch_prefetched, 0u);
      EXPECT_EQ(result->bytes_nvme_read, update.read + gradients.read) << step;
      EXPECT_EQ(result->bytes_nvme_write, update.written + gradients.written) << step;
    }
    reads_.push_back(update.read + gradients.read);
    ASSERT_TRUE((*engine)->close().has_value());
  }

  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> reads_;  // by budget
};

TEST_F(StepBytesOf, AnyPlacementAreWhatIsMeasured) {
  for (const int dtype : {0, 1}) {
    for (const int head : {0, 1}) {
      const bool many = dtype != head;
      Choice run{2, 2, 2, 1, 2, 2, 2, many ? 1 : 0, 0, 1, 1, dtype, many ? 1 : 0, head};
      Config config = config_of(run);
      config.micro_batch_size = scale.vocab / scale.length;
      if (many || dtype == 0) config.zero.offload_param.max_in_cpu = 1'000'000;
      const Module& module = module_of(run);
      PlacementRequest request{.parameters = &module.parameters(),
                               .stages = &module.stages(),
                               .config = &config,
                               .compute_dtype = DType::Float32,
                               .device_bytes = everything};
      const std::uint64_t least = least_host_budget(request, [](const auto&) { return true; });
      const std::uint64_t all = least_host_budget(request, [](const Placement& placement) {
        const StepBytes bytes = optimizer_bytes(placement);
        return bytes.read == 0;
      });
      reads_.clear();
      for (std::uint64_t part = 0; part <= 6; ++part) {
        config.artesian.host_memory = least + (all - least) * part / 6;
        SCOPED_TRACE(describe(run) + ", host " + std::to_string(*config.artesian.host_memory));
        expect_bytes(run, config);
        if (HasFatalFailure()) return;
      }
      EXPECT_GT(reads_.front(), 0u);
      EXPECT_EQ(reads_.back(), 0u);
      EXPECT_GE(std::set<std::uint64_t>(reads_.begin(), reads_.end()).size(), 6u);
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
