// Proves how a training run ends when a disk stops answering in the middle: with one Timeout that
// names what hangs, the same for every later call, and without abort or hang. The disk really
// stops: transfers go to a pipe into which nobody writes.
#include "zero3/torch/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>

#include "base/log.h"
#include "models/registry.h"
#include "tests/support/diverted_files.h"
#include "tests/support/temporary_directory.h"
#include "zero3/step/weights.h"
#include "zero3/torch/token_batch.h"

namespace artesian::zero3 {
namespace {

/// Once stalled, transfers wait for ever.
class StallingFiles final : public test_support::DivertedFiles {
 public:
  StallingFiles() { EXPECT_EQ(pipe(pipe_), 0); }
  void stall() { diverted = pipe_[0]; }

 private:
  int pipe_[2] = {-1, -1};  // open until the process ends: transfers wait on it
};

Config everything_on(const std::string& directory) {
  Config config;
  config.micro_batch_size = config.train_batch_size = config.accumulation_steps = 1;
  config.zero.stage = 3;
  config.zero.offload_param = {.device = Offload::Nvme, .nvme_paths = {directory}, .max_in_cpu = 0};
  config.zero.offload_optimizer = {.device = Offload::Nvme, .nvme_paths = {directory}};
  config.zero.param_persistence_threshold = 0;
  config.zero.prefetch_bucket_size = config.zero.max_live_parameters = 0;
  config.zero.max_reuse_distance = 0;
  config.artesian.device_memory = config.artesian.host_memory = std::uint64_t{64} << 20;
  config.artesian.engine = EngineChoice::IoUring;
  return config;
}

TEST(EngineOnAStalledDisk, EndsWithATimeoutAndWithoutAbort) {
  set_log_level(LogLevel::Warning);
  const auto described = models::parse_model_config(
      R"({"model_type": "gpt2", "vocab_size": 100, "n_positions": 8, "n_embd": 32, "n_layer": 2,
          "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})",
      "config.json");
  ASSERT_TRUE(described.has_value());
  const auto module = models::make_module(*described);
  const test_support::TemporaryDirectory directory;
  static StallingFiles files;  // the engine is kept until the end, and its files with it
  auto created = Engine::create(*module, everything_on(directory.path()),
                                {.files = &files, .wait_seconds = 0.5});
  if (!created.has_value() && created.error().code == ErrorCode::Unsupported) {
    GTEST_SKIP() << "the kernel refuses io_uring";
  }
  ASSERT_TRUE(created.has_value()) << created.error().to_string();
  auto engine = std::move(created).value();
  RandomWeights weights(module->parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  TokenBatch tokens(1, 8);
  std::iota(tokens.ids().begin(), tokens.ids().end(), 0);
  std::iota(tokens.targets().begin(), tokens.targets().end(), 1);
  ASSERT_TRUE(engine->forward(tokens.batch()).has_value());
  ASSERT_TRUE(engine->backward().has_value());
  ASSERT_TRUE(engine->step().has_value());
  ASSERT_TRUE(engine->digest().has_value());  // reads all state: no write is left in flight

  files.stall();
  const auto start = std::chrono::steady_clock::now();
  const auto stalled = engine->forward(tokens.batch());
  ASSERT_FALSE(stalled.has_value());
  EXPECT_EQ(stalled.error().code, ErrorCode::Timeout);
  EXPECT_NE(
      stalled.error().message.find("no answer from the disk within 0.5 s; in flight: read of"),
      std::string::npos)
      << stalled.error().message;
  const auto later = engine->forward(tokens.batch());
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().message, stalled.error().message);
  const auto closed = engine->close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, ErrorCode::Timeout);
  engine.reset();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 30.0);  // one deadline; a hang is what this catches
}

TEST(Budgets, OfSeveralEnginesAreSharesOfOneMachinesMemory) {
  Config config;
  const Budgets alone = choose_budgets(config, "cpu", {}, 1).value();
  const Budgets of_four = choose_budgets(config, "cpu", {}, 4).value();
  // Other processes take and release memory meanwhile, but not half of it.
  EXPECT_LT(of_four.host, alone.host / 2);
  EXPECT_LT(of_four.device, alone.device / 2);
  EXPECT_LT(of_four.activations, alone.activations / 2);
  config.artesian.host_memory = 1 << 20;
  EXPECT_EQ(choose_budgets(config, "cpu", {}, 4).value().host, 1u << 20);
}

}  // namespace
}  // namespace artesian::zero3
