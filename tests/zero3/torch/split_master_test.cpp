// Proves that split master weights only change how weights are stored. With weights of which most
// are ties, some subnormal and some negative zeros, clipped gradients, accumulation in bf16 and in
// fp32, and evaluations in between, losses, norms, every master weight read back and the digest are
// those of whole ones, wherever parameters and optimizer state live. The old parameters, which the
// update then needs, are verified when it reads them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tests/support/damage_files.h"
#include "tests/zero3/budgets.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

/// Three of four weights are exactly between two bf16 values.
class Ties final : public WeightSource {
 public:
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override {
    for (std::size_t i = 0; i < target.size(); ++i) {
      const std::uint64_t word = random_word(17, parameter, first + i);
      const auto sign = static_cast<std::uint32_t>(word >> 63) << 31;
      const auto upper = static_cast<std::uint32_t>(word % 0x200u) + 0x3c00u;  // 0.008 to 0.5
      const auto lower =
          (word >> 32) % 4 == 0 ? static_cast<std::uint32_t>(word >> 40) & 0xffffu : 0x8000u;
      const std::uint32_t tiny_ones[] = {0u, 0x8000u, 0x18000u, 0x7f8000u};
      const bool is_tiny = (word >> 20) % 16 == 0;
      const std::uint32_t bits = is_tiny ? tiny_ones[(word >> 24) % 4] : upper << 16 | lower;
      target[i] = std::bit_cast<float>(sign | bits);
    }
    return {};
  }
};

class SplitMasters : public Equality {
 protected:
  SplitMasters() : Equality(tiny) { at::set_num_threads(1); }

  struct Seen {
    std::vector<double> figures;  // losses, norms, evaluations
    std::vector<std::uint32_t> masters;
    std::string digest;
    bool split = false;
    bool operator==(const Seen& other) const {
      return figures == other.figures && masters == other.masters && digest == other.digest;
    }
  };

  void fill(TokenBatch& batch, std::uint64_t draw) const {
    for (const auto tokens : {batch.ids(), batch.targets()}) {
      for (auto& token : tokens) {
        token = static_cast<std::int64_t>(random_word(3, 0, draw++) % scale.vocab);
      }
    }
  }

  Seen train(const Choice& run, const Config& config) {
    Seen seen;
    Module& module = module_of(run);
    const EngineOptions options{.split_master = run[Masters] == 0};
    const auto engine = create_patiently(module, config, options).value();
    seen.split = engine->placement().units[0].master == Master::Split;
    Ties weights;
    EXPECT_TRUE(engine->initialize(weights).has_value());
    TokenBatch batch(scale.samples, scale.length);
    std::uint64_t draw = 0;
    for (int step = 0; step < 6; ++step) {
      for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
        fill(batch, 1000 * draw++);
        seen.figures.push_back(engine->forward(batch.batch()).value());
        EXPECT_TRUE(engine->backward().has_value());
      }
      const auto result = engine->step().value();
      EXPECT_FALSE(result.overflow);
      EXPECT_GT(result.grad_norm, config.gradient_clipping);
      seen.figures.push_back(result.grad_norm);
      if (step % 2 == 0) continue;
      seen.figures.push_back(engine->evaluate(batch.batch()).value().item<double>());
    }
    for (std::uint32_t parameter = 0; parameter < module.parameters().size(); ++parameter) {
      const auto keep = [&](std::span<const float> piece) -> Result<void> {
        for (const float master : piece) {
          seen.masters.push_back(std::bit_cast<std::uint32_t>(master));
        }
        return {};
      };
      EXPECT_TRUE(engine->read_master(parameter, keep).has_value());
    }
    seen.digest = engine->digest().value();
    EXPECT_TRUE(engine->close().has_value());
    return seen;
  }
};

TEST_F(SplitMasters, AreThoseOfWholeOnesWhereverTheyLive) {
  int split = 0;
  for (const DType grad : {DType::BFloat16, DType::Float32}) {
    for (const bool decoupled : {true, false}) {
      const auto config_for = [&](const Choice& run) {
        Config config = config_of(run);
        config.grad_accum_dtype = grad;
        config.optimizer.decoupled_decay = decoupled;
        config.gradient_clipping = 1e-3;
        config.artesian.host_memory = everything;
        return config;
      };
      Choice run{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 1, 1, 1};
      run[Masters] = 1;
      const Seen whole = train(run, config_for(run));
      ASSERT_FALSE(whole.split);
      run[Masters] = 0;
      for (const int param : {0, 1, 2}) {
        for (const int optimizer : {0, 1, 2}) {
          run[ParamHome] = param;
          run[OptimizerHome] = optimizer;
          run[SubGroup] = 0;
          run[SwapFolders] = param == 2 ? 1 : 0;
          Config config = config_for(run);
          if (optimizer == 2) config.artesian.host_memory = std::uint64_t{600} << 10;
          const Seen seen = train(run, config);
          EXPECT_TRUE(seen == whole) << describe(run);
          split += seen.split ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GE(split, 4 * 7);
}

TEST_F(SplitMasters, ADamagedParameterIsFoundByTheUpdateThatNeedsIt) {
  const Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1};
  Config config = config_of(run);
  config.artesian.host_memory = host_budget_for_gradients(module_of(run), config);
  const auto engine = Engine::create(module_of(run), config, {}).value();
  ASSERT_EQ(engine->placement().units[0].master, Master::Split);
  RandomWeights weights(module_of(run).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  TokenBatch batch(scale.samples, scale.length);
  ASSERT_TRUE(engine->forward(batch.batch()).has_value());
  ASSERT_TRUE(engine->backward().has_value());
  ASSERT_TRUE(engine->step().has_value());
  ASSERT_EQ(test_support::damage_files(directory_ / "param", 49152), 1);
  const auto updated = engine->finish_update();
  ASSERT_FALSE(updated.has_value());
  EXPECT_EQ(updated.error().code, ErrorCode::Corrupt);
  EXPECT_NE(updated.error().message.find(" parameters"), std::string::npos)
      << updated.error().message;
  static_cast<void>(engine->close().has_value());
}

}  // namespace
}  // namespace artesian::zero3
