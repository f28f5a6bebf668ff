// Proves that steps unlike the last one change no bit: stages that a forward leaves out, always or
// for some batches, whose parameters then get gradients of zero; batches that a stage refuses
// between two steps; more or fewer passes than before. With updates under forward and under
// backward, kept and rolled back, on the CPU and on a separate device.
#include <ATen/ATen.h>

#include "tests/support/separate_device.h"
#include "tests/zero3/under_backward_harness.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;

constexpr double never_reached = 1e6;

/// A module that always leaves its first block out, its second one if the batch's first token is
/// even, and refuses a batch at a stage if told to.
class OddModule final : public Module {
 public:
  explicit OddModule(std::unique_ptr<Module> module) : module_(std::move(module)) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return module_->parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return module_->stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    TORCH_CHECK(stage != refuses, "refused");
    const bool even = batch.input.flatten()[0].item<std::int64_t>() % 2 == 0;
    if (leaves_out && (stage == 1 || (stage == 2 && even))) return input;
    return module_->forward(stage, input, parameters, batch);
  }

  bool leaves_out = false;
  std::size_t refuses = ~std::size_t{0};

 private:
  const std::unique_ptr<Module> module_;
};

class OddBatchesTest : public UpdateUnderBackward {
 protected:
  OddBatchesTest() {
    for (auto& module : modules_) module = std::make_unique<OddModule>(std::move(module));
  }
  OddModule& odd(const Choice& choice) const { return static_cast<OddModule&>(module_of(choice)); }
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
  /// Steps of one micro-batch. If `refused`, a stage refuses a batch before some of them.
  std::string digest_of(const Choice& choice, const Config& config, EngineOptions options,
                        bool refused) {
    options.split_master = choice[Masters] == 0;
    options.input_elements = input_elements(module_of(choice));
    auto engine = create_patiently(module_of(choice), config, options);
    EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
    if (!engine.has_value()) return {};
    RandomWeights weights(module_of(choice).parameters(), 1);
    EXPECT_TRUE((*engine)->initialize(weights).has_value());
    const std::size_t stages = module_of(choice).stages().size();
    for (std::uint64_t step = 0; step < scale.steps; ++step) {
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        std::uint64_t draw = 0;
        for (auto& token : tokens) {
          token = static_cast<std::int64_t>(random_word(91, step, draw++) % scale.vocab);
        }
      }
      if (refused && step % 3 != 0) {
        odd(choice).refuses = 1 + step % (stages - 1);
        EXPECT_FALSE((*engine)->forward(batch.batch()).has_value());
        odd(choice).refuses = ~std::size_t{0};
      }
      forward_and_backward(**engine);
      const auto result = (*engine)->step();
      EXPECT_TRUE(result.has_value()) << result.error().to_string();
      if (!result.has_value()) return {};
    }
    const std::string digest = (*engine)->digest().value();
    EXPECT_TRUE((*engine)->close().has_value());
    return digest;
  }
};

TEST_F(OddBatchesTest, StagesThatAForwardLeavesOutGetZerosAndChangeNoBit) {
  std::map<std::array<int, 4>, Outcome> references;
  std::ptrdiff_t units = 0, on_a_device = 0;
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    Choice choice = random_choice(84, seed);
    if (seed % 4 != 3) choice[OptimizerHome] = 2;
    SCOPED_TRACE(describe(choice));
    odd(choice).leaves_out = true;
    const int clip = static_cast<int>(seed % 3);  // never; in no step; in all steps
    const double clipping = std::array{0.0, never_reached, 1e-3}[seed % 3];
    separate_device = false;
    Outcome& expected = references[{choice[Dtype], choice[Accumulation], choice[Head], clip}];
    if (expected.steps.empty()) {
      const Choice simple = in_memory(choice);
      Config config = clipped(simple, clipping);
      config.artesian.speculative_update = false;
      expected = train(simple, config);
    }
    separate_device = seed % 4 == 1;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    device.micro_batches_at_once = micro_batches_at_once(choice);
    EngineOptions options;
    options.spare_device = seed % 8 == 0;
    options.share_under_backward = 1.0;
    if (separate_device) options.backend = &device;
    const Outcome outcome = train(choice, clipped(choice, clipping), options);
    expect_same(outcome, expected);
    if (HasFatalFailure()) return;
    units += outcome.units_under_backward;
    on_a_device += separate_device ? outcome.units_under_backward : 0;
  }
  EXPECT_GE(units, 40);
  EXPECT_GE(on_a_device, 5);
}

// On a GPU the look-up itself would end all work of the process.
TEST_F(OddBatchesTest, ARowThatTheTableHasNotIsRefusedByName) {
  const Choice choice{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, 1, 0, 0};
  for (const bool separate : {false, true}) {
    SeparateDevice device(SeparateDevice::Order::Late, 1);
    EngineOptions options;
    if (separate) options.backend = &device;
    separate_device = separate;
    auto engine = create_patiently(module_of(choice), config_of(choice), options);
    ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
    RandomWeights weights(module_of(choice).parameters(), 1);
    ASSERT_TRUE((*engine)->initialize(weights).has_value());
    const auto rows = static_cast<std::int64_t>(scale.vocab);
    for (const std::int64_t odd : {std::int64_t{-1}, rows}) {
      std::fill(batch.ids().begin(), batch.ids().end(), 0);
      batch.ids().back() = odd;
      for (const bool trains : {true, false}) {
        const auto refused = [&]() -> Result<void> {
          if (trains) {
            ARTESIAN_TRY(loss, (*engine)->forward(batch.batch()));
            static_cast<void>(loss);
            return {};
          }
          ARTESIAN_TRY(output, (*engine)->evaluate(batch.batch()));
          static_cast<void>(output);
          return {};
        }();
        ASSERT_FALSE(refused.has_value());
        EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
        EXPECT_EQ(refused.error().message, "batch.input: got " + std::to_string(odd) +
                                               ", allowed 0 to " + std::to_string(rows - 1) +
                                               ", the rows of \"wte.weight\"");
      }
    }
    batch.ids().back() = rows - 1;
    forward_and_backward(**engine);
    EXPECT_TRUE((*engine)->step().has_value());
    EXPECT_TRUE((*engine)->close().has_value());
  }
}

TEST_F(OddBatchesTest, ARefusedBatchBetweenTwoStepsChangesNoBit) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Choice choice = random_choice(85, seed);
    choice[Accumulation] = 0;
    choice[OptimizerHome] = 2;
    if (seed % 2 == 0) choice[Budget] = 3;  // a part of the state in memory
    SCOPED_TRACE(describe(choice));
    separate_device = seed % 3 != 0;
    EngineOptions options;
    options.spare_device = false;
    options.share_under_backward = std::array{0.0, 0.5, 1.0}[seed / 3 % 3];
    const Config config = clipped(choice, never_reached);
    std::array<std::string, 2> digests;
    for (const bool refused : {false, true}) {
      SeparateDevice device(SeparateDevice::Order::Late, seed);
      // The device takes memory that was copied before a fence for read by whoever waits for that
      // fence. But units fetched ahead may be refreshed again before they are read.
      device.expect_races = true;
      if (separate_device) options.backend = &device;
      digests[refused ? 1 : 0] = digest_of(choice, config, options, refused);
    }
    EXPECT_EQ(digests[0], digests[1]);
    compared += digests[0].empty() ? 0 : 1;
  }
  EXPECT_EQ(compared, 40);
}

TEST_F(OddBatchesTest, AnEvaluationInAStepOfFewerPassesThanTheLastChangesNoBit) {
  Config config = clipped(run, never_reached);
  config.accumulation_steps = 3;
  config.zero.max_reuse_distance = 0;  // dropped at once, and so fetched anew for the next forward
  config.zero.prefetch_bucket_size = config.zero.max_live_parameters = everything;
  config.artesian.device_memory = config.artesian.activation_memory = everything;
  const auto digest_of = [&](bool evaluates) {
    auto engine = create(config, {.spare_device = false});
    std::vector<double> losses;
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step % 2 == 0) {  // three passes through the stages, or one
        for (int micro = 0; micro < 3; ++micro) forward_and_backward(*engine);
      } else {
        const std::array batches{batch.batch(), batch.batch(), batch.batch()};
        EXPECT_TRUE(engine->forward_backward(batches).has_value());
      }
      if (evaluates) {
        const auto loss = engine->evaluate(batch.batch());
        EXPECT_TRUE(loss.has_value());
        losses.push_back(loss->item<double>());
      }
      const auto result = engine->step();
      EXPECT_TRUE(result.has_value()) << result.error().to_string();
      if (!evaluates) continue;
      const auto after = engine->evaluate(batch.batch());
      EXPECT_LT(after->item<double>(), losses.back());  // with the weights after the step
    }
    const std::string digest = engine->digest().value();
    EXPECT_TRUE(engine->close().has_value());
    return digest;
  };
  EXPECT_EQ(digest_of(true), digest_of(false));
}

}  // namespace
}  // namespace artesian::zero3
