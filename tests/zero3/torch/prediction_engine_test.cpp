// Proves that a run measures the disk below each of its folders: with parameters and optimizer
// state on simulated disks of very different speeds, a step's time on the disks is that of the slow
// one's own bytes. Casts count as computing: if nothing is on a disk, nothing is waited for.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

class PredictionOfEngine : public Equality {
 protected:
  PredictionOfEngine() : Equality(tiny) { at::set_num_threads(1); }

  /// Returns the third of three steps. The update of the step before moves as many bytes as its
  /// own.
  StepResult third_step(const Choice& run, const EngineOptions& options) {
    auto engine = Engine::create(module_of(run), config_of(run), options).value();
    RandomWeights weights(module_of(run).parameters(), 1);
    EXPECT_TRUE(engine->initialize(weights).has_value());
    TokenBatch batch(scale.samples, scale.length);
    StepResult last;
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(engine->forward(batch.batch()).has_value());
      EXPECT_TRUE(engine->backward().has_value());
      last = engine->step().value();
    }
    EXPECT_TRUE(engine->finish_update().has_value());
    const auto completed = engine->take_completed();
    EXPECT_TRUE(completed.has_value() && completed->step == last.step);
    last.bytes_paths = completed->bytes_paths;
    last.wait_param_s = completed->wait_param_s;
    last.cast_s = completed->cast_s;
    EXPECT_TRUE(engine->close().has_value());
    return last;
  }
};

// All on NVMe, with a folder for each section.
TEST_F(PredictionOfEngine, GoesByTheDiskOfEachFolder) {
  constexpr double fast = 1e18;  // bytes per second
  for (const std::size_t slow : {0u, 1u}) {
    EngineOptions options;
    for (std::uint64_t folder = 0; folder < 2; ++folder) {
      const double speed = folder == slow ? 100.0 : fast;
      options.path_disks.push_back({.speed = {speed, speed / 2}, .device = folder});
    }
    const StepResult step = third_step({2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1}, options);
    ASSERT_EQ(step.bytes_paths.paths.size(), 2u);
    const SwapPathUse& use = step.bytes_paths.paths[slow];
    EXPECT_EQ(use.directory, directory_ / (slow == 0 ? "param" : "optimizer"));
    ASSERT_GT(use.bytes_read, 0u);
    ASSERT_GT(use.bytes_written, 0u);
    const double seconds =
        static_cast<double>(use.bytes_read) / 100.0 + static_cast<double>(use.bytes_written) / 50.0;
    EXPECT_NEAR(step.disk_s, seconds, seconds * 1e-9);
  }
}

// In host memory, bf16 computed in fp32, without room to keep gathered parameters.
TEST_F(PredictionOfEngine, CastsAreComputedAndNotWaitedFor) {
  Choice run{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  run[Dtype] = 1;
  const StepResult step = third_step(run, {});
  EXPECT_GT(step.bytes_h2d, 0u);
  EXPECT_GT(step.cast_s, 0.0);
  EXPECT_GT(step.gradient_s, 0.0);
  EXPECT_EQ(step.wait_param_s, 0.0);
  EXPECT_EQ(step.wait_grad_s, 0.0);
}

}  // namespace
}  // namespace artesian::zero3
