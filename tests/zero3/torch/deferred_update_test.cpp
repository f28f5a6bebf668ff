// Proves the promises of the deferred update: step() leaves it to the next forward; any other
// access to the weights completes it first; a step is complete, with all its figures, when its
// update is; and an error in it ends the run with that error alone, so that no caller sees weights
// that damaged state may have reached.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tests/support/damage_files.h"
#include "tests/zero3/budgets.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/torch/activation_memory.h"

namespace artesian::zero3 {
namespace {

class DeferredUpdate : public Equality {
 protected:
  DeferredUpdate() : Equality(tiny), batch(scale.samples, scale.length) { at::set_num_threads(1); }

  /// All on NVMe in fp32, a ring of one item; trained for some steps.
  std::unique_ptr<Engine> trained(int steps) { return trained(steps, run); }
  std::unique_ptr<Engine> trained(int steps, const Choice& choice) {
    auto engine = Engine::create(module_of(choice), config_of(choice), {}).value();
    RandomWeights weights(module_of(choice).parameters(), 1);
    EXPECT_TRUE(engine->initialize(weights).has_value());
    for (int step = 0; step < steps; ++step) {
      forward_and_backward(*engine);
      EXPECT_TRUE(engine->step().has_value());
    }
    return engine;
  }
  void forward_and_backward(Engine& engine) {
    EXPECT_TRUE(engine.forward(batch.batch()).has_value());
    EXPECT_TRUE(engine.backward().has_value());
  }

  const Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  TokenBatch batch;
};

TEST_F(DeferredUpdate, RunsUnderTheNextForwardAndCompletesItsStep) {
  const auto engine = trained(1);
  ASSERT_FALSE(engine->take_completed().has_value());
  ASSERT_TRUE(engine->forward(batch.batch()).has_value());
  const auto first = engine->take_completed();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->step, 1u);
  EXPECT_GT(first->bytes_nvme_write, 0u);
  EXPECT_FALSE(engine->take_completed().has_value());  // each step once
  ASSERT_TRUE(engine->backward().has_value());
  const auto second = engine->step();
  ASSERT_TRUE(second.has_value());
  EXPECT_LT(second->bytes_nvme_write, first->bytes_nvme_write);  // no gradients spill
  ASSERT_TRUE(engine->finish_update().has_value());
  EXPECT_EQ(engine->take_completed()->bytes_nvme_write, first->bytes_nvme_write);
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(DeferredUpdate, GoesOnBetweenTheOperatorsOfForward) {
  Choice in_memory = run;
  in_memory[Budget] = in_memory[Live] = in_memory[Reuse] = in_memory[Bucket] = 2;
  in_memory[ParamHome] = 1;
  Timeline timeline;
  const Config config = config_of(in_memory);
  auto engine = Engine::create(module_of(in_memory), config, {.timeline = &timeline}).value();
  RandomWeights weights(module_of(in_memory).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  for (int step = 0; step < 3; ++step) {
    forward_and_backward(*engine);
    ASSERT_TRUE(engine->step().has_value());
  }
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_NE(text_of(timeline).find("update ahead"), std::string::npos);
}

TEST_F(DeferredUpdate, ReadsUnderBackwardWhatItUpdatesFirst) {
  Choice in_memory = run;  // except the optimizer's state
  in_memory[ParamHome] = 1;
  in_memory[Live] = in_memory[Reuse] = in_memory[Bucket] = 2;
  Config config = config_of(in_memory);
  config.artesian.host_memory = host_budget_for_gradients(module_of(in_memory), config, true);
  std::vector<std::string> digests;
  for (const bool asked : {false, true}) {  // a digest between: reads ahead are repeated
    auto engine = Engine::create(module_of(in_memory), config, {}).value();
    RandomWeights weights(module_of(in_memory).parameters(), 1);
    ASSERT_TRUE(engine->initialize(weights).has_value());
    for (int step = 0; step < 3; ++step) {
      const std::string before = engine->digest().value();
      ASSERT_TRUE(engine->forward(batch.batch()).has_value());
      const std::uint64_t read = engine->path_use().front().bytes_read;
      ASSERT_TRUE(engine->backward().has_value());
      EXPECT_GT(engine->path_use().front().bytes_read, read);
      if (asked) {
        EXPECT_EQ(engine->digest().value(), before);
      }
      ASSERT_TRUE(engine->step().has_value());
    }
    digests.push_back(engine->digest().value());
    EXPECT_TRUE(engine->close().has_value());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(DeferredUpdate, ReadsAheadIntoMemoryThatActivationsHaveLeft) {
  track_activations();
  if (kept_activations() == nullptr) GTEST_SKIP() << "a sanitizer sees each allocation by itself";
  static_cast<void>(at::empty({4 << 20}));  // as activations of a larger model leave memory
  Choice in_memory = run;                   // except the optimizer's state
  in_memory[ParamHome] = 1;
  in_memory[Live] = in_memory[Reuse] = in_memory[Bucket] = 2;
  Config config = config_of(in_memory);
  config.artesian.host_memory = host_budget_for_gradients(module_of(in_memory), config, true);
  auto engine = Engine::create(module_of(in_memory), config, {}).value();
  RandomWeights weights(module_of(in_memory).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  std::uint64_t lent = 0;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(engine->forward(batch.batch()).has_value());
    ASSERT_TRUE(engine->backward().has_value());
    lent += activations_lent();
    EXPECT_LE(2 * activations_lent() + activations_now(), memory_beside_tiers(0).activations);
    if (step == 2) {  // borrowed memory is returned whatever follows
      ASSERT_TRUE(engine->digest().has_value());
      EXPECT_EQ(activations_lent(), 0u);
    }
    ASSERT_TRUE(engine->step().has_value());
  }
  EXPECT_GT(lent, 0u);
  ASSERT_TRUE(engine->finish_update().has_value());
  EXPECT_EQ(activations_lent(), 0u);
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(DeferredUpdate, GivesBackWhatItBorrowedForAStepThatIsSkipped) {
  track_activations();
  if (kept_activations() == nullptr) GTEST_SKIP() << "a sanitizer sees each allocation by itself";
  static_cast<void>(at::empty({4 << 20}));
  Choice halves = run;
  halves[ParamHome] = 1;
  halves[Live] = halves[Reuse] = halves[Bucket] = 2;
  halves[Dtype] = 2;  // at a loss scale of 2^24
  Config config = config_of(halves);
  config.artesian.speculative_update = false;
  config.artesian.host_memory = host_budget_for_gradients(module_of(halves), config, true);
  auto engine = Engine::create(module_of(halves), config, {}).value();
  RandomWeights weights(module_of(halves).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  int skipped = 0;
  int updated = 0;
  while (updated < 2) {
    forward_and_backward(*engine);
    const bool borrowed = activations_lent() != 0;
    const auto step = engine->step();
    ASSERT_TRUE(step.has_value());
    updated += step->overflow ? 0 : 1;
    if (!step->overflow || !borrowed) continue;
    EXPECT_EQ(activations_lent(), 0u);
    ++skipped;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(DeferredUpdate, IsCompletedByWhateverComesToTheWeights) {
  const std::vector<std::function<bool(Engine&)>> calls{
      [&](Engine& engine) { return engine.evaluate(batch.batch()).has_value(); },
      [](Engine& engine) { return engine.digest().has_value(); },
      [](Engine& engine) { return engine.finish_update().has_value(); },
      [](Engine& engine) {
        return engine.read_master(0, [](std::span<const float>) -> Result<void> { return {}; })
            .has_value();
      }};
  std::uint64_t written = 0;
  for (const auto& call : calls) {
    const auto engine = trained(2);
    static_cast<void>(engine->take_completed());
    EXPECT_TRUE(call(*engine));
    const auto completed = engine->take_completed();
    ASSERT_TRUE(completed.has_value());
    EXPECT_EQ(completed->step, 2u);
    if (written == 0) written = completed->bytes_nvme_write;
    EXPECT_EQ(completed->bytes_nvme_write, written);
    EXPECT_TRUE(engine->finish_update().has_value());  // nothing is left to update
    EXPECT_FALSE(engine->take_completed().has_value());
    EXPECT_TRUE(engine->close().has_value());
  }
  EXPECT_GT(written, 0u);
}

// Between two steps, and in the middle of one.
TEST_F(DeferredUpdate, WhatReadsTheWeightsIsCountedInNoStep) {
  const auto none = [](std::span<const float>) -> Result<void> { return {}; };
  const std::vector<std::function<bool(Engine&)>> calls{
      [](Engine& engine) { return engine.finish_update().has_value(); },
      [](Engine& engine) { return engine.digest().has_value(); },
      [&](Engine& engine) { return engine.read_master(1, none).has_value(); }};
  std::vector<std::uint64_t> read;
  for (const auto& call : calls) {
    const auto engine = trained(4);
    EXPECT_TRUE(call(*engine));
    EXPECT_TRUE(engine->forward(batch.batch()).has_value());
    const std::uint64_t before = engine->path_use().front().bytes_read;
    EXPECT_TRUE(call(*engine));
    const bool reads = engine->path_use().front().bytes_read > before;
    EXPECT_EQ(reads, &call != &calls.front());
    EXPECT_TRUE(engine->backward().has_value());
    EXPECT_TRUE(engine->step().has_value());
    EXPECT_TRUE(engine->finish_update().has_value());
    const auto completed = engine->take_completed();
    ASSERT_TRUE(completed.has_value());
    EXPECT_EQ(completed->step, 5u);
    read.push_back(completed->bytes_nvme_read);
    EXPECT_TRUE(engine->close().has_value());
  }
  EXPECT_GT(read[0], 0u);
  EXPECT_EQ(read[1], read[0]);
  EXPECT_EQ(read[2], read[0]);
}

TEST_F(DeferredUpdate, StateThatCannotBeReadEndsTheRunWhoeverReadsIt) {
  const auto none = [](std::span<const float>) -> Result<void> { return {}; };
  const auto engine = trained(2);
  ASSERT_TRUE(engine->finish_update().has_value());
  ASSERT_EQ(test_support::damage_files(directory_ / "optimizer", 65536), 1);
  const auto& parameters = module_of(run).parameters();
  Result<void> outcome;
  for (std::uint32_t index = 0; outcome.has_value() && index < parameters.size(); ++index) {
    outcome = engine->read_master(index, none);
  }
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::Corrupt) << outcome.error().to_string();
  EXPECT_EQ(engine->forward(batch.batch()).error().to_string(), outcome.error().to_string());
  EXPECT_TRUE(engine->close().has_value());
}

// With parameters on NVMe, and with those that are gathered where they live, in memory.
TEST_F(DeferredUpdate, AnErrorInItEndsTheRunWithThatError) {
  for (const int param_home : {2, 1, 0}) {
    SCOPED_TRACE(param_home);
    Choice choice = run;
    choice[ParamHome] = param_home;
    const auto engine = trained(2, choice);
    static_cast<void>(engine->take_completed());
    ASSERT_EQ(test_support::damage_files(directory_ / "optimizer", 65536), 1);
    const auto forward = engine->forward(batch.batch());
    ASSERT_FALSE(forward.has_value());
    EXPECT_EQ(forward.error().code, ErrorCode::Corrupt) << forward.error().to_string();
    EXPECT_FALSE(engine->take_completed().has_value());
    const std::string text = forward.error().to_string();
    EXPECT_EQ(engine->forward(batch.batch()).error().to_string(), text);
    EXPECT_EQ(engine->evaluate(batch.batch()).error().to_string(), text);
    EXPECT_EQ(engine->backward().error().to_string(), text);
    EXPECT_EQ(engine->step().error().to_string(), text);
    EXPECT_EQ(engine->finish_update().error().to_string(), text);
    EXPECT_EQ(engine->digest().error().to_string(), text);
    const auto none = [](std::span<const float>) -> Result<void> {
      ADD_FAILURE() << "was shown weights";
      return {};
    };
    EXPECT_EQ(engine->read_master(0, none).error().to_string(), text);
    EXPECT_TRUE(engine->close().has_value());
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

TEST_F(DeferredUpdate, IsDroppedByClose) {
  const auto engine = trained(2);
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_FALSE(engine->finish_update().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(DeferredUpdate, ASkippedStepHasNone) {
  Choice half = run;
  half[Dtype] = 2;  // fp16, whose first scale is too large
  auto engine = Engine::create(module_of(half), config_of(half), {}).value();
  RandomWeights weights(module_of(half).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  forward_and_backward(*engine);
  const auto result = engine->step();
  ASSERT_TRUE(result.has_value());
  ASSERT_TRUE(result->overflow);
  const auto completed = engine->take_completed();
  ASSERT_TRUE(completed.has_value());
  EXPECT_EQ(completed->bytes_nvme_write, result->bytes_nvme_write);
  EXPECT_TRUE(engine->close().has_value());
}

}  // namespace
}  // namespace artesian::zero3
