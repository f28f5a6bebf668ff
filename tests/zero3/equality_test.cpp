// Proves the first promise: placement, budgets, block size, prefetch limits, persistence, sub-group
// size, buffer count and I/O engine never change a bit. A pairwise-covering set of runs (every pair
// of values of every two factors occurs) trains a small GPT-2 for 16 steps; losses, loss scales,
// gradient norms and the final digest must equal those of the run of the same dtype and
// accumulation with everything in memory.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "base/random.h"
#include "models/registry.h"
#include "zero3/engine.h"
#include "zero3/token_batch.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t steps = 16;
constexpr std::uint64_t samples = 2;
constexpr std::uint64_t length = 16;
constexpr std::uint64_t everything = std::uint64_t{1} << 30;

// The factors and how many values each has.
enum Factor : std::size_t {
  ParamHome,
  OptimizerHome,
  Budget,
  BlockSize,
  Bucket,
  Live,
  Reuse,
  Persistence,
  SubGroup,
  BufferCount,
  IoEngine,
  Dtype,
  Accumulation,
  Head,
  factor_count
};
constexpr std::array<int, factor_count> levels{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 3, 3, 2};
using Choice = std::array<int, factor_count>;

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

models::ModelConfig small_gpt2(bool tied) {
  const std::string text =
      R"({"model_type": "gpt2", "vocab_size": 1000, "n_positions": 32, "n_embd": 128, "n_layer": 2,
          "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
          "tie_word_embeddings": )";
  auto config = models::parse_model_config(text + (tied ? "true}" : "false}"), "config.json");
  EXPECT_TRUE(config.has_value());
  return std::move(config).value();
}

class Equality : public testing::Test {
 protected:
  Equality() {
    for (const bool tied : {true, false}) {
      modules_.push_back(models::make_module(small_gpt2(tied)));
    }
    set_log_level(LogLevel::Warning);
    directory_ = std::filesystem::temp_directory_path() /
                 ("artesian-equality-" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory_);
  }
  ~Equality() override { std::filesystem::remove_all(directory_); }

  Config config_of(const Choice& run) const;
  Module& module_of(const Choice& run) const {
    return *modules_[static_cast<std::size_t>(run[Head])];
  }
  void set_budgets(Config& config, const Choice& run) const;
  struct Outcome {
    std::vector<StepResult> steps;
    std::string digest;
  };
  Outcome train(const Choice& run);

  std::vector<std::unique_ptr<Module>> modules_;  // with a tied head, with one of its own
  std::filesystem::path directory_;
};

Config Equality::config_of(const Choice& run) const {
  constexpr std::array<Offload, 3> offloads{Offload::None, Offload::Cpu, Offload::Nvme};
  constexpr std::array<DType, 3> dtypes{DType::Float32, DType::BFloat16, DType::Float16};
  const auto pick = [&](Factor factor, std::array<std::uint64_t, 3> values) {
    return values[static_cast<std::size_t>(run[factor])];
  };
  Config config;
  config.micro_batch_size = samples;
  config.accumulation_steps = pick(Accumulation, {1, 2, 4});
  config.param_dtype = config.grad_accum_dtype = dtypes[static_cast<std::size_t>(run[Dtype])];
  config.loss_scale = {.initial_scale_power = 24, .loss_scale_window = 3, .hysteresis = 1};
  config.optimizer.weight_decay = 0.01;
  config.zero.stage = 3;
  config.zero.offload_param = {.device = offloads[static_cast<std::size_t>(run[ParamHome])],
                               .nvme_path = directory_ / "param",
                               .max_in_cpu = 0};
  config.zero.offload_optimizer = {.device = offloads[static_cast<std::size_t>(run[OptimizerHome])],
                                   .nvme_path = directory_ / "optimizer",
                                   .buffer_count = pick(BufferCount, {1, 2, 5})};
  config.zero.prefetch_bucket_size = pick(Bucket, {0, 100'000, 50'000'000});
  config.zero.max_live_parameters = pick(Live, {0, 400'000, 1'000'000'000});
  config.zero.max_reuse_distance = pick(Reuse, {0, 300'000, 1'000'000'000});
  config.zero.param_persistence_threshold = pick(Persistence, {0, 100'000, 1'000'000});
  config.zero.sub_group_size = pick(SubGroup, {2'048, 50'000, 1'000'000'000});
  config.aio.block_size = pick(BlockSize, {4'096, 65'536, 1'048'576});
  config.artesian.engine = run[IoEngine] == 0 ? EngineChoice::IoUring : EngineChoice::Threads;
  set_budgets(config, run);
  return config;
}

/// Level 0: the least that fits; 1: half as much again; 2: everything.
void Equality::set_budgets(Config& config, const Choice& run) const {
  const int level = run[Budget];
  const Module& module = module_of(run);
  Budgets budgets{everything, everything};
  const auto fits = [&](const Budgets& tried) {
    return make_placement({.parameters = &module.parameters(),
                           .stages = &module.stages(),
                           .config = &config,
                           .compute_dtype = DType::Float32,
                           .device_bytes = tried.device,
                           .host_bytes = tried.host})
        .has_value();
  };
  for (const auto member : {&Budgets::device, &Budgets::host}) {
    std::uint64_t low = 0;
    std::uint64_t high = everything;
    while (high - low > 1) {
      Budgets tried = budgets;  // the host's least is for the device's share as chosen
      tried.*member = low + (high - low) / 2;
      (fits(tried) ? high : low) = tried.*member;
    }
    budgets.*member = level == 0 ? high : level == 1 ? high + high / 2 : everything;
  }
  config.artesian.device_memory = budgets.device;
  config.artesian.host_memory = budgets.host;
}

Equality::Outcome Equality::train(const Choice& run) {
  Outcome outcome;
  const Config config = config_of(run);
  Module& module = module_of(run);
  auto engine = Engine::create(module, config, {});
  EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
  if (!engine.has_value()) return outcome;
  RandomWeights weights(module.parameters(), 1);
  const auto initialized = (*engine)->initialize(weights);
  EXPECT_TRUE(initialized.has_value()) << initialized.error().to_string();
  TokenBatch batch(samples, length);
  std::uint64_t draw = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        for (auto& token : tokens) {
          token = static_cast<std::int64_t>(random_word(2, 0, draw++) % 1000);
        }
      }
      const auto loss = (*engine)->forward(batch.batch());
      EXPECT_TRUE(loss.has_value()) << loss.error().to_string();
      const auto backward = (*engine)->backward();
      EXPECT_TRUE(backward.has_value()) << backward.error().to_string();
      if (!backward.has_value()) return outcome;
    }
    auto result = (*engine)->step();
    EXPECT_TRUE(result.has_value()) << result.error().to_string();
    if (!result.has_value()) return outcome;
    EXPECT_LE(result->peak_device, *config.artesian.device_memory);
    EXPECT_LE(result->peak_host, *config.artesian.host_memory);
    outcome.steps.push_back(std::move(result).value());
  }
  auto digest = (*engine)->digest();
  EXPECT_TRUE(digest.has_value()) << digest.error().to_string();
  if (digest.has_value()) outcome.digest = *digest;
  const auto closed = (*engine)->close();
  EXPECT_TRUE(closed.has_value()) << closed.error().to_string();
  EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "left behind in the nvme paths";
  return outcome;
}

std::string describe(const Choice& run) {
  std::string text = "run";
  for (const int level : run) text += " " + std::to_string(level);
  return text;
}

TEST_F(Equality, EveryPlacementAndLimitGivesTheSameBits) {
  const auto runs = pairwise_runs();
  std::map<std::array<int, 3>, Outcome> references;  // everything in memory, nothing fetched
  for (const Choice& run : runs) {
    const std::array<int, 3> group{run[Dtype], run[Accumulation], run[Head]};
    if (references.count(group) != 0) continue;
    references[group] =
        train({0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]});
  }
  ASSERT_LE(runs.size() + references.size(), 60u);
  for (const Choice& run : runs) {
    SCOPED_TRACE(describe(run));
    const Outcome& reference = references[{run[Dtype], run[Accumulation], run[Head]}];
    const Outcome outcome = train(run);
    ASSERT_EQ(outcome.steps.size(), reference.steps.size());
    for (std::size_t step = 0; step < outcome.steps.size(); ++step) {
      const StepResult& got = outcome.steps[step];
      const StepResult& expected = reference.steps[step];
      const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
      ASSERT_EQ(bits(got.loss), bits(expected.loss)) << "step " << step + 1;
      ASSERT_EQ(bits(got.grad_norm), bits(expected.grad_norm)) << "step " << step + 1;
      ASSERT_EQ(bits(got.loss_scale), bits(expected.loss_scale)) << "step " << step + 1;
      ASSERT_EQ(got.overflow, expected.overflow) << "step " << step + 1;
    }
    ASSERT_EQ(outcome.digest, reference.digest);
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
