// Proves the promises of the update under backward that may be rolled back (under_backward.h, Note
// [Speculation]): it has the bits of an update that waited, whether it is kept, rolled back because
// of a clip factor, an overflow or a caller, or only tried after some steps. A disk without room
// for shadows costs time alone. Faults in it end the run.
#include <ATen/ATen.h>
#include <fcntl.h>

#include "tests/support/damage_files.h"
#include "tests/support/diverted_files.h"
#include "tests/support/separate_device.h"
#include "tests/zero3/under_backward_harness.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;

constexpr double never_reached = 1e6;

class SpeculativeUpdateTest : public UpdateUnderBackward {
 protected:
  Config clipped(const Choice& choice, double clipping) const {
    Config config = config_of(choice);
    config.gradient_clipping = clipping;
    const bool on_nvme = choice[ParamHome] == 2 && choice[OptimizerHome] == 2;
    if (choice[Budget] == 0 && on_nvme && choice[Schedule] != 4 && !separate_device) {
      config.artesian.host_memory =  // otherwise gradients would spill
          host_budget_for_gradients(module_of(choice), config, choice[Masters] == 0);
    }
    return config;
  }
  /// Everything in memory, each update after its step's norm.
  Outcome reference(const Choice& choice, double clipping) {
    const Choice simple = in_memory(choice);
    Config config = clipped(simple, clipping);
    config.artesian.speculative_update = false;
    return train(simple, config);
  }
  /// Runs so many steps, in which `between` sees the engine between backward and step().
  template <typename Between>
  std::string digest_after(const Config& config, int steps, const Between& between) {
    auto engine = create(config);
    for (int step = 0; step < steps; ++step) {
      forward_and_backward(*engine);
      between(*engine, step);
      EXPECT_TRUE(engine->step().has_value());
    }
    const std::string digest = engine->digest().value();
    EXPECT_TRUE(engine->close().has_value());
    return digest;
  }
  static std::ptrdiff_t taken_back(const Outcome& outcome) {
    return std::count_if(outcome.steps.begin(), outcome.steps.end(),
                         [](const StepResult& step) { return step.taken_back; });
  }
};

/// A norm that about half of the steps exceed.
double median_norm(const std::vector<StepResult>& steps) {
  std::vector<double> norms;
  for (const StepResult& step : steps) {
    if (!step.overflow) norms.push_back(step.grad_norm);
  }
  std::sort(norms.begin(), norms.end());
  return norms[norms.size() / 2];
}

TEST_F(SpeculativeUpdateTest, KeptOrTakenBackGivesTheSameBits) {
  std::map<std::array<int, 3>, double> medians;
  std::map<std::array<int, 4>, Outcome> references;
  std::ptrdiff_t units = 0, backs = 0, overflows = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Choice choice = random_choice(83, seed);
    if (seed % 4 != 3) choice[OptimizerHome] = 2;
    SCOPED_TRACE(describe(choice));
    const std::array<int, 3> model{choice[Dtype], choice[Accumulation], choice[Head]};
    separate_device = false;
    if (!medians.contains(model)) medians[model] = median_norm(reference(choice, 0.0).steps);
    const int clip = static_cast<int>(seed % 3);  // in some steps; never; always
    const double clipping = std::array{medians[model], never_reached, 1e-3}[seed % 3];
    Outcome& expected = references[{model[0], model[1], model[2], clip}];
    if (expected.steps.empty()) expected = reference(choice, clipping);
    separate_device = seed % 6 == 5;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    device.micro_batches_at_once = micro_batches_at_once(choice);
    const Config config = clipped(choice, clipping);
    EngineOptions options;
    options.spare_device = seed % 8 == 0;  // units with a home there are not rolled back
    options.share_under_backward = std::array{1.0, 0.5}[seed % 2];
    if (choice[SwapFolders] == 2) options.path_disks = unlike_disks(config);
    if (separate_device) options.backend = &device;
    const Outcome outcome = train(choice, config, options);
    expect_same(outcome, expected);
    if (HasFatalFailure()) return;
    units += outcome.units_under_backward;
    backs += taken_back(outcome);
    for (const StepResult& step : outcome.steps) overflows += step.taken_back && step.overflow;
  }
  EXPECT_GE(units, 50);
  EXPECT_GE(backs, 15);
  EXPECT_GE(overflows, 10);
}

// Also Muon's matrices, which are orthogonalised from a gradient that is clipped afterwards. LAMB
// waits for its norms, so it updates nothing there.
TEST_F(SpeculativeUpdateTest, IsTakenBackOfEveryOptimizer) {
  for (const OptimizerType type :
       {OptimizerType::Sgd, OptimizerType::Adagrad, OptimizerType::RmsProp, OptimizerType::Lion,
        OptimizerType::Lamb, OptimizerType::Muon}) {
    for (const int dtype : {0, 1, 2}) {  // fp32, bf16, fp16 with overflows
      Choice choice = run;
      choice[Dtype] = dtype;
      SCOPED_TRACE(describe(choice) + ", optimizer " + std::to_string(static_cast<int>(type)));
      const auto config_for = [&](const Choice& of, double clipping) {
        Config config = clipped(of, clipping);
        config.optimizer.type = type;
        config.optimizer.nesterov = true;
        config.optimizer.muon_lr = 0.01;
        if (type == OptimizerType::Muon) *config.artesian.host_memory += 400'000;
        return config;
      };
      const Choice simple = in_memory(choice);
      const auto waits = [&](double clipping) {
        Config config = config_for(simple, clipping);
        config.artesian.speculative_update = false;
        return train(simple, config);
      };
      const double median = median_norm(waits(0.0).steps);
      const Config config = config_for(choice, median);
      const EngineOptions options{.share_under_backward = 1.0};
      if (type == OptimizerType::Muon) {
        const auto engine = make_engine(choice, config, options);
        const std::vector<Unit>& units = engine->placement().layout.units;
        std::size_t matrices = 0;
        for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
          matrices += engine->units_under_backward()[unit] && units[unit].rows != 0;
        }
        EXPECT_GE(matrices, 4u);  // of eight; host memory may hold the state of some
        EXPECT_TRUE(engine->close().has_value());
      }
      const Outcome outcome = train(choice, config, options);
      expect_same(outcome, waits(median));
      if (HasFatalFailure()) return;
      EXPECT_EQ(outcome.units_under_backward == 0, type == OptimizerType::Lamb);
      EXPECT_EQ(taken_back(outcome) == 0, type == OptimizerType::Lamb);
    }
  }
}

// Host memory has room for the old state.
TEST_F(SpeculativeUpdateTest, BesideASeparateDeviceTakesStateThatIsInHostMemory) {
  std::ptrdiff_t units = 0, backs = 0, overflows = 0;
  std::array<int, 2> limited{};
  int kept = 0;
  for (int turn = 0; turn < 30; ++turn) {
    const int dtype = turn % 5;
    Choice choice{turn % 3, 1, 2, 2, 2, 2, 2, 0, turn % 2, 1, 1, dtype, turn % 2, 1};
    choice[Masters] = turn / 5 % 2;
    SCOPED_TRACE(describe(choice));
    separate_device = false;
    const double median = median_norm(reference(choice, 0.0).steps);
    const double clipping =
        std::array{median, never_reached, 1e-3}[static_cast<std::size_t>(turn / 10)];
    const Outcome expected = reference(choice, clipping);
    separate_device = true;
    Config config = clipped(choice, clipping);
    for (const bool less : {false, true}) {
      SeparateDevice device(SeparateDevice::Order::Random, static_cast<std::uint64_t>(turn));
      EngineOptions options{.backend = &device, .share_under_backward = 1.0};
      options.spare_device = false;
      const auto plan = make_engine(choice, config, options)->placement();
      if (plan.old_state_bytes == 0) break;  // parameters are not beside their state
      kept += less ? 0 : 1;
      limited[less ? 1 : 0] += static_cast<int>(plan.old_state_bytes >> 10);
      const Outcome outcome = train(choice, config, options);
      expect_same(outcome, expected);
      if (HasFatalFailure()) return;
      EXPECT_GT(outcome.units_under_backward, 0);
      units += outcome.units_under_backward;
      backs += taken_back(outcome);
      for (const StepResult& step : outcome.steps) overflows += step.taken_back && step.overflow;
      Choice tight = choice;
      tight[Budget] = 1;
      config.artesian.host_memory = clipped(tight, clipping).artesian.host_memory;
    }
  }
  EXPECT_GE(kept, 20);
  EXPECT_LT(limited[1], limited[0]);
  EXPECT_GE(units, 60);
  EXPECT_GE(backs, 10);
  EXPECT_GE(overflows, 5);
}

TEST_F(SpeculativeUpdateTest, IsMadeUnderBackwardOnlyAfterAStepThatKeptIt) {
  const auto writes = [&](const Config& config) {  // up to step(), by bytes of each kind
    auto engine = create(config);
    EXPECT_EQ(count(engine->units_under_backward()),
              engine->placement().layout.units.size() - 1);  // all but the looked-up table
    std::vector<std::uint64_t> written;
    for (int step = 0; step < 3; ++step) {
      forward_and_backward(*engine);
      const auto result = engine->step();
      EXPECT_EQ(result->taken_back, step == 0 && config.gradient_clipping < 1.0);
      EXPECT_TRUE(engine->finish_update().has_value());
      static_cast<void>(engine->take_completed());
      written.push_back(result->bytes_nvme_write);
    }
    EXPECT_TRUE(engine->close().has_value());
    return written;
  };
  for (const std::uint64_t bytes : writes(clipped(run, never_reached))) EXPECT_GT(bytes, 0u);
  EXPECT_EQ(writes(clipped(run, 1e-3))[2], 0u);
  Config off = clipped(run, never_reached);
  off.artesian.speculative_update = false;
  auto engine = create(off);
  EXPECT_EQ(count(engine->units_under_backward()), 0u);
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(SpeculativeUpdateTest, WhoComesToTheWeightsBeforeTheStepTakesItBack) {
  const Config config = clipped(run, never_reached);
  const auto nobody = [](Engine&, int) {};
  const std::string expected = digest_after(config, 5, nobody);
  std::string before;
  const auto evaluates = [&](Engine& engine, int step) {
    if (step != 2 && step != 3) return;
    EXPECT_TRUE(engine.evaluate(batch.batch()).has_value());
    if (step == 3) before = engine.digest().value();
  };
  EXPECT_EQ(digest_after(config, 5, evaluates), expected);
  EXPECT_EQ(digest_after(config, 3, nobody), before);  // the weights of three steps
}

/// Its loss is not finite if told so, while its gradients are those of a finite loss.
class BadLossModule final : public Module {
 public:
  explicit BadLossModule(Module& module) : module_(module) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return module_.parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return module_.stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& given, const Batch& batch) override {
    const at::Tensor output = module_.forward(stage, input, given, batch);
    const bool last = stage + 1 == module_.stages().size();
    return bad && last ? output + std::numeric_limits<double>::infinity() : output;
  }

  bool bad = false;

 private:
  Module& module_;
};

TEST_F(SpeculativeUpdateTest, ABadLossUpdatesNothingThoughItsGradientsAreFinite) {
  for (const int dtype : {1, 2}) {  // bf16, fp16
    for (const int accumulation : {0, 1}) {
      SCOPED_TRACE(std::to_string(dtype) + ", " + std::to_string(accumulation));
      Choice choice = run;
      choice[Dtype] = dtype;
      choice[Accumulation] = accumulation;
      std::vector<std::string> digests;
      for (const bool speculative : {true, false}) {
        Config config = clipped(choice, never_reached);
        config.artesian.speculative_update = speculative;
        config.loss_scale.initial_scale_power = 8;  // nothing else overflows
        BadLossModule module(module_of(choice));
        auto engine = Engine::create(module, config, {.share_under_backward = 1.0}).value();
        RandomWeights weights(module.parameters(), 1);
        ASSERT_TRUE(engine->initialize(weights).has_value());
        EXPECT_EQ(count(engine->units_under_backward()) > 0, speculative);
        for (int step = 0; step < 6; ++step) {
          for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
            module.bad = (step == 2 || step == 4) && micro + 1 == config.accumulation_steps;
            forward_and_backward(*engine);
          }
          const StepResult result = engine->step().value();
          EXPECT_EQ(result.overflow, step == 2 || step == 4) << step;
          EXPECT_EQ(result.overflow_parameter, "") << step;
        }
        digests.push_back(engine->digest().value());
        EXPECT_TRUE(engine->close().has_value());
      }
      EXPECT_EQ(digests[0], digests[1]);
    }
  }
}

TEST_F(SpeculativeUpdateTest, IsDroppedByClose) {
  const auto engine = create(clipped(run, never_reached));
  forward_and_backward(*engine);
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

/// A disk that has the space that is reserved at first, and no more.
class FullDisk final : public test_support::DivertedFiles {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    ARTESIAN_TRY(file, DivertedFiles::open(path, options));
    return std::unique_ptr<File>(std::make_unique<Full>(std::move(file)));
  }

 private:
  class Full final : public test_support::ForwardingFile {
   public:
    using ForwardingFile::ForwardingFile;
    Result<void> allocate(std::uint64_t bytes) noexcept override {
      ARTESIAN_TRY(size, this->size());
      if (size != 0) return make_error(ErrorCode::NoSpace, "full", ENOSPC);
      return ForwardingFile::allocate(bytes);
    }
  };
};

TEST_F(SpeculativeUpdateTest, OnAFullDiskTheUpdateWaitsForTheNorm) {
  const Config config = clipped(run, never_reached);
  const std::string expected = digest_after(config, 3, [](Engine&, int) {});
  FullDisk files;
  auto engine = create(config, {.files = &files});
  EXPECT_EQ(count(engine->units_under_backward()), 0u);
  for (int step = 0; step < 3; ++step) {
    forward_and_backward(*engine);
    EXPECT_TRUE(engine->step().has_value());
  }
  EXPECT_EQ(engine->digest().value(), expected);
  EXPECT_TRUE(engine->close().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(SpeculativeUpdateTest, DamageToAShadowThatWasKeptIsFound) {
  const auto engine = create(clipped(run, never_reached));
  forward_and_backward(*engine);
  ASSERT_TRUE(engine->step().has_value());
  ASSERT_TRUE(engine->finish_update().has_value());
  ASSERT_EQ(test_support::damage_files(directory_ / "optimizer", 65536), 1);
  const auto digest = engine->digest();
  ASSERT_FALSE(digest.has_value());
  EXPECT_EQ(digest.error().code, ErrorCode::Corrupt) << digest.error().to_string();
  EXPECT_TRUE(engine->close().has_value());
}

TEST_F(SpeculativeUpdateTest, AnErrorInTakingItBackEndsTheRunWithThatError) {
  test_support::DivertedFiles files;
  const auto engine = create(clipped(run, never_reached), {.files = &files});
  forward_and_backward(*engine);
  ASSERT_TRUE(engine->step().has_value());
  forward_and_backward(*engine);
  const int memory = ::open("/proc/self/mem", O_RDONLY);  // at an unmapped address: EIO
  files.diverted = memory;
  const auto evaluated = engine->evaluate(batch.batch());
  ASSERT_FALSE(evaluated.has_value());
  EXPECT_EQ(evaluated.error().code, ErrorCode::Io) << evaluated.error().to_string();
  EXPECT_EQ(engine->step().error().to_string(), evaluated.error().to_string());
  files.diverted = -1;
  static_cast<void>(engine->close().has_value());  // transfers in flight have failed, too
  ::close(memory);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(SpeculativeUpdateTest, IsOfUnitsWhoseStateIsAllOnNvme) {
  Choice choice = run;
  choice[Budget] = 3;  // some of the state in host memory
  auto engine = create(clipped(choice, never_reached));
  const Placement& plan = engine->placement();
  const std::vector<bool> units = units_under_backward(plan, module_of(run).stages(), 1.0, true);
  EXPECT_GT(count(units), 0u);
  EXPECT_LT(count(units), count(units_under_backward(plan, module_of(run).stages(), 1.0, false)));
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    for (std::uint64_t index = 0; units[unit] && index < plan.sub_group_count(unit); ++index) {
      EXPECT_EQ(plan.optimizer_home(unit, index), Tier::Nvme);
    }
  }
  EXPECT_TRUE(engine->close().has_value());
}

}  // namespace
}  // namespace artesian::zero3
