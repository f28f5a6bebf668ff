// Shared by the tests of equality: the factors that must not change a bit, a small GPT-2, and a run
// of it under one choice of factors. docs/dev/design.md explains why the bits are the same.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "models/registry.h"
#include "zero3/step/swap_paths.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/token_batch.h"

namespace artesian::zero3 {

using tiering::Tier;

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
  Schedule,     // of micro-batches: each by itself; in groups of one, of all; those checkpointed,
                // with inputs kept by LibTorch; in tiers, at an odd Budget in groups of one
  UpdateAt,     // when the update is complete: under the next forward; at once; at one or the other
  SwapFolders,  // one; two alike; three of disks that differ, one of them shared by both sections
  Masters,      // in bf16: split where that costs nothing; whole
  factor_count
};
constexpr std::array<int, factor_count> levels{3, 3, 4, 3, 3, 3, 3, 3, 3,
                                               3, 3, 5, 3, 2, 5, 3, 3, 2};
using Choice = std::array<int, factor_count>;

/// Returns the greatest number of micro-batches that run layer by layer.
inline std::size_t micro_batches_at_once(const Choice& run) {
  return run[Schedule] == 0 ? 1 : std::size_t{1} << run[Accumulation];
}

/// The size of the model, and the length of a run.
struct Scale {
  std::uint64_t vocab = 1000;
  std::uint64_t hidden = 128;
  std::uint64_t samples = 2;  // of a micro-batch
  std::uint64_t length = 16;  // tokens
  std::size_t steps = 16;
  std::uint64_t some = 100'000;  // elements, as limits: about half a block
};

/// For tests of many steps or many runs. Computes with one thread, since more would only wait for
/// each other.
constexpr Scale tiny{
    .vocab = 200, .hidden = 32, .samples = 1, .length = 8, .steps = 16, .some = 6'000};

inline models::ModelConfig small_gpt2(const Scale& scale, bool tied) {
  const std::string text =
      R"({"model_type": "gpt2", "n_positions": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0,
          "embd_pdrop": 0, "attn_pdrop": 0, "vocab_size": )" +
      std::to_string(scale.vocab) + R"(, "n_embd": )" + std::to_string(scale.hidden) +
      R"(, "tie_word_embeddings": )" + (tied ? "true}" : "false}");
  auto config = models::parse_model_config(text, "config.json");
  EXPECT_TRUE(config.has_value());
  return std::move(config).value();
}

class Equality : public testing::Test {
 protected:
  Equality() : Equality(Scale{}) {}
  explicit Equality(const Scale& given) : scale(given) {
    track_activations();  // else groups of micro-batches would be of one
    for (const bool tied : {true, false}) {
      modules_.push_back(models::make_module(small_gpt2(scale, tied)));
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
  std::vector<std::uint64_t> input_elements(const Module& module) const {
    return std::vector<std::uint64_t>(module.stages().size(),
                                      scale.samples * scale.length * scale.hidden);
  }
  std::vector<std::string> folders(const std::string& name, const Choice& run) const;
  void set_budgets(Config& config, const Choice& run) const;
  struct Outcome {
    std::vector<StepResult> steps;
    std::string digest;
    bool split = false;  // a unit's optimizer state is partly in host memory, partly on NVMe
    bool split_masters = false;  // of some unit
    std::ptrdiff_t units_under_backward = 0;
    std::ptrdiff_t updated_by_device = 0;                     // units
    std::array<std::uint64_t, tiering::tier_count> inputs{};  // bytes kept in each tier
  };
  Outcome train(const Choice& run) { return train(run, config_of(run)); }
  Outcome train(const Choice& run, const Config& config) {
    EngineOptions options;
    if (run[SwapFolders] == 2) options.path_disks = unlike_disks(config);
    return train(run, config, options);
  }
  static std::vector<tiering::PathDisk> unlike_disks(const Config& config);
  Outcome train(const Choice& run, const Config& config, const EngineOptions& given);
  /// Makes the engine for a run.
  std::unique_ptr<Engine> make_engine(const Choice& run, const Config& config,
                                      const EngineOptions& given = {});
  void run_steps(Engine& engine, const Choice& run, std::size_t first, std::size_t last,
                 std::vector<StepResult>& steps) const;
  static std::string digest_of(Engine& engine, std::vector<StepResult>& steps);
  static void expect_same(const Outcome& outcome, const Outcome& reference);
  /// Each factor at random; `stream` makes tests differ.
  static Choice random_choice(std::uint64_t stream, std::uint64_t seed);
  std::string text_of(const Timeline& timeline) const;

  const Scale scale;
  bool separate_device = false;                   // budgets are for one
  std::vector<std::unique_ptr<Module>> modules_;  // with a tied head, with one of its own
  std::filesystem::path directory_;
};

inline std::vector<std::string> Equality::folders(const std::string& name,
                                                  const Choice& run) const {
  std::vector<std::string> list{directory_ / name};
  if (run[SwapFolders] > 0) list.push_back(directory_ / (name + "-second"));
  if (run[SwapFolders] > 1) list.push_back(directory_ / "both");
  return list;
}

inline Choice Equality::random_choice(std::uint64_t stream, std::uint64_t seed) {
  Choice run{};
  for (std::size_t factor = 0; factor < factor_count; ++factor) {
    const auto count = static_cast<std::uint64_t>(levels[factor]);
    run[factor] = static_cast<int>(random_word(stream, seed, factor) % count);
  }
  return run;
}

inline std::string Equality::text_of(const Timeline& timeline) const {
  const std::string path = directory_ / "trace.json";
  EXPECT_TRUE(timeline.write(path).has_value());
  std::ifstream stream(path);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

/// As many disks as the configuration uses folders, with different speeds.
inline std::vector<tiering::PathDisk> Equality::unlike_disks(const Config& config) {
  std::vector<tiering::PathDisk> disks;
  for (std::uint64_t index = 0; index < swap_paths_of(config).value().directories.size(); ++index) {
    const double speed = std::array{1e9, 4e9, 2e9}[index % 3];
    disks.push_back({.speed = {speed, speed / 2}, .device = index});
  }
  return disks;
}

inline Config Equality::config_of(const Choice& run) const {
  constexpr std::array<Offload, 3> offloads{Offload::None, Offload::Cpu, Offload::Nvme};
  constexpr std::array<DType, 5> dtypes{DType::Float32, DType::BFloat16, DType::Float16,
                                        DType::BFloat16, DType::Float16};
  const auto pick = [&](Factor factor, std::array<std::uint64_t, 3> values) {
    return values[static_cast<std::size_t>(run[factor])];
  };
  Config config;
  config.micro_batch_size = scale.samples;
  config.accumulation_steps = pick(Accumulation, {1, 2, 4});
  config.param_dtype = config.grad_accum_dtype = dtypes[static_cast<std::size_t>(run[Dtype])];
  const bool natively = run[Dtype] > 2;  // computed in the stored type, else in fp32
  config.artesian.compute_dtype = natively ? config.param_dtype : DType::Float32;
  config.loss_scale = {.initial_scale_power = 24, .loss_scale_window = 3, .hysteresis = 1};
  config.optimizer.weight_decay = 0.01;
  config.zero.stage = 3;
  config.zero.offload_param = {.device = offloads[static_cast<std::size_t>(run[ParamHome])],
                               .nvme_paths = folders("param", run),
                               .max_in_cpu = 0};
  config.zero.offload_optimizer = {.device = offloads[static_cast<std::size_t>(run[OptimizerHome])],
                                   .nvme_paths = folders("optimizer", run),
                                   .buffer_count = pick(BufferCount, {1, 2, 5})};
  config.zero.prefetch_bucket_size = pick(Bucket, {0, scale.some, 50'000'000});
  config.zero.max_live_parameters = pick(Live, {0, 4 * scale.some, 1'000'000'000});
  config.zero.max_reuse_distance = pick(Reuse, {0, 3 * scale.some, 1'000'000'000});
  config.zero.param_persistence_threshold = pick(Persistence, {0, scale.some, 10 * scale.some});
  config.zero.sub_group_size = pick(SubGroup, {2'048, scale.some / 2, 1'000'000'000});
  config.aio.block_size = pick(BlockSize, {4'096, 65'536, 1'048'576});
  constexpr std::array<EngineChoice, 3> engines{EngineChoice::IoUring, EngineChoice::Threads,
                                                EngineChoice::Libaio};
  config.artesian.engine = engines[static_cast<std::size_t>(run[IoEngine])];
  const bool one_at_a_time = run[Schedule] < 2 || (run[Schedule] == 4 && run[Budget] % 2 == 1);
  config.artesian.activation_memory = one_at_a_time ? 1 : everything;
  config.activation_checkpointing = run[Schedule] >= 3;
  config.cpu_checkpointing = run[Schedule] == 4;
  set_budgets(config, run);
  return config;
}

/// Level 0: the least that fits; 1: half as much again; 2: everything; 3: half as much again, and
/// host memory for a part of the optimizer state.
inline void Equality::set_budgets(Config& config, const Choice& run) const {
  const int level = run[Budget];
  const Module& module = module_of(run);
  Budgets budgets{everything, everything};
  const auto fits = [&](const Budgets& tried) {
    return make_placement({.parameters = &module.parameters(),
                           .stages = &module.stages(),
                           .config = &config,
                           .compute_dtype = *config.artesian.compute_dtype,
                           .separate_device = separate_device,
                           .device_bytes = tried.device,
                           .host_bytes = tried.host,
                           .split_master = run[Masters] == 0,
                           .input_elements = input_elements(module),
                           .activation_bytes = *config.artesian.activation_memory})
        .has_value();
  };
  for (const auto member : {&Budgets::device, &Budgets::host}) {
    std::uint64_t low = 0;
    std::uint64_t high = everything;
    while (high - low > 1) {
      Budgets tried = budgets;  // the least host memory for the chosen device memory
      tried.*member = low + (high - low) / 2;
      (fits(tried) ? high : low) = tried.*member;
    }
    budgets.*member = level == 0 ? high : level == 2 ? everything : high + high / 2;
  }
  if (level == 3) {
    for (const auto& parameter : module.parameters()) budgets.host += parameter.numel() * 7;
  }
  config.artesian.device_memory = budgets.device;
  config.artesian.host_memory = budgets.host;
}

/// Forward and backward of each micro-batch, one by one or passed together.
inline bool run_micro_batches(Engine& engine, const std::vector<TokenBatch>& micro_batches,
                              bool one_by_one) {
  if (one_by_one) {
    for (const TokenBatch& batch : micro_batches) {
      const auto loss = engine.forward(batch.batch());
      EXPECT_TRUE(loss.has_value()) << loss.error().to_string();
      const auto backward = engine.backward();
      EXPECT_TRUE(backward.has_value()) << backward.error().to_string();
      if (!backward.has_value()) return false;
    }
    return true;
  }
  std::vector<Batch> batches;
  for (const TokenBatch& batch : micro_batches) batches.push_back(batch.batch());
  const auto losses = engine.forward_backward(batches);
  EXPECT_TRUE(losses.has_value()) << losses.error().to_string();
  return losses.has_value();
}

inline bool splits_a_unit(const Placement& plan) {
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    std::array<bool, 3> homes{};
    for (std::uint64_t group = 0; group < plan.sub_group_count(unit); ++group) {
      homes[static_cast<std::size_t>(plan.optimizer_home(unit, group))] = true;
    }
    if (std::count(homes.begin(), homes.end(), true) > 1) return true;
  }
  return false;
}

/// Tries again while another test uses all AIO requests of the machine.
inline Result<std::unique_ptr<Engine>> create_patiently(Module& module, const Config& config,
                                                        const EngineOptions& options) {
  auto engine = Engine::create(module, config, options);
  for (int tries = 0; tries < 600 && !engine && engine.error().system_error == EAGAIN; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    engine = Engine::create(module, config, options);
  }
  return engine;
}

inline std::unique_ptr<Engine> Equality::make_engine(const Choice& run, const Config& config,
                                                     const EngineOptions& given) {
  Module& module = module_of(run);
  EngineOptions options = given;
  options.split_master = run[Masters] == 0;
  options.input_elements = input_elements(module);
  auto engine = create_patiently(module, config, options);
  EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
  return engine.has_value() ? std::move(engine).value() : nullptr;
}

/// Steps [first, last) of a run, with the batches that belong to them.
inline void Equality::run_steps(Engine& engine, const Choice& run, std::size_t first,
                                std::size_t last, std::vector<StepResult>& steps) const {
  const Config& config = engine.config();
  const auto collect = [&] {  // a step with all its figures
    const auto done = engine.take_completed();
    if (done.has_value()) steps[static_cast<std::size_t>(done->step) - 1] = *done;
  };
  std::uint64_t draw = first * config.accumulation_steps * 2 * scale.samples * scale.length;
  for (std::size_t step = first; step < last; ++step) {
    std::vector<TokenBatch> micro_batches;
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      TokenBatch& batch = micro_batches.emplace_back(scale.samples, scale.length);
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        for (auto& token : tokens) {
          token = static_cast<std::int64_t>(random_word(2, 0, draw++) % scale.vocab);
        }
      }
    }
    ASSERT_TRUE(run_micro_batches(engine, micro_batches, run[Schedule] == 0));
    collect();
    auto result = engine.step();
    ASSERT_TRUE(result.has_value()) << result.error().to_string();
    const bool at_once = run[UpdateAt] == 1 || (run[UpdateAt] == 2 && step % 3 != 0);
    const auto updated = at_once ? engine.finish_update() : Result<void>();
    EXPECT_TRUE(updated.has_value()) << updated.error().to_string();
    EXPECT_LE(result->peak_device, *config.artesian.device_memory);
    EXPECT_LE(result->peak_host, *config.artesian.host_memory);
    steps.push_back(std::move(result).value());
    collect();
  }
}

inline std::string Equality::digest_of(Engine& engine, std::vector<StepResult>& steps) {
  auto digest = engine.digest();
  EXPECT_TRUE(digest.has_value()) << digest.error().to_string();
  const auto done = engine.take_completed();
  if (done.has_value()) steps[static_cast<std::size_t>(done->step) - 1] = *done;
  return digest.has_value() ? *digest : "";
}

inline Equality::Outcome Equality::train(const Choice& run, const Config& config,
                                         const EngineOptions& given) {
  Outcome outcome;
  const auto engine = make_engine(run, config, given);
  if (engine == nullptr) return outcome;
  outcome.split = splits_a_unit(engine->placement());
  for (const UnitPlacement& unit : engine->placement().units) {
    outcome.split_masters = outcome.split_masters || unit.master == Master::Split;
    outcome.updated_by_device += unit.updated_on_device() ? 1 : 0;
  }
  const std::vector<bool>& under_backward = engine->units_under_backward();
  outcome.units_under_backward = std::count(under_backward.begin(), under_backward.end(), true);
  for (const Tier tier : {Tier::Device, Tier::Host, Tier::Nvme}) {
    outcome.inputs[static_cast<std::size_t>(tier)] = engine->placement().inputs.bytes_in(tier);
  }
  RandomWeights weights(module_of(run).parameters(), 1);
  const auto initialized = engine->initialize(weights);
  EXPECT_TRUE(initialized.has_value()) << initialized.error().to_string();
  run_steps(*engine, run, 0, scale.steps, outcome.steps);
  if (HasFatalFailure()) return outcome;
  outcome.digest = digest_of(*engine, outcome.steps);
  const auto closed = engine->close();
  EXPECT_TRUE(closed.has_value()) << closed.error().to_string();
  EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "left behind in the nvme paths";
  return outcome;
}

inline std::string describe(const Choice& run) {
  std::string text = "run";
  for (const int level : run) text += " " + std::to_string(level);
  return text;
}

/// Compares losses, norms and scales of every step, and the final state.
inline void Equality::expect_same(const Outcome& outcome, const Outcome& reference) {
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

}  // namespace artesian::zero3
