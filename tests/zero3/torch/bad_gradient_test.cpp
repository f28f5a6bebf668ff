// Proves that one bad gradient, wherever it is, changes nothing but the loss scale. At 1,000
// positions of a model (first and last element of each parameter, edges of sub-groups and of the
// norm's leaves, tails of partial ones, and random ones) the step is skipped, the parameter is
// named, the scale is halved, and parameters, master weights and moments are bit-equal to before.
// In fp16, bf16 and fp32, with the state in memory and on NVMe. After a step that ends the run, the
// weights before it can be read, bit for bit, unless it had begun to update them. The model is a
// sum of weights, and of a term that is zero but has an infinite slope where the test wants it.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <span>

#include "base/log.h"
#include "base/random.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/budgets.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/token_batch.h"

namespace artesian::zero3 {
namespace {

enum class Slope : std::uint8_t { Infinite, MinusInfinite, NotANumber };

struct Position {
  std::uint32_t parameter = 0;
  std::uint64_t index = 0;
};

/// The loss is a quarter of the sum of all weights.
class Sum final : public Module {
 public:
  Sum() {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      parameters_.push_back({.name = name, .shape = std::move(shape)});
      return static_cast<std::uint32_t>(parameters_.size() - 1);
    };
    const auto table = add("table", {4, 8});
    const std::uint32_t large = add("large", {2, 33'007});  // leaves, of which the last is not full
    const std::uint32_t odd = add("odd", {2'051});
    const std::uint32_t single = add("single", {1});
    stages_.push_back({.name = "rows", .parameters = {table}, .lookup = table});
    stages_.push_back({.name = "one", .parameters = {single, large}, .lookup = {}});
    stages_.push_back({.name = "two", .parameters = {odd}, .lookup = {}});
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch&) override {
    at::Tensor sum = input.sum();
    std::size_t given = 0;
    for (const auto parameter : stages_[stage].parameters) {
      if (stages_[stage].lookup == parameter) {  // the ids are 0, 1, 2, 1: rows are positions
        if (bad.has_value() && bad->parameter == parameter) sum = sum + bad_term(input);
        continue;
      }
      const at::Tensor& weights = parameters[given++];
      sum = sum + weights.sum() * 0.25;
      if (bad.has_value() && bad->parameter == parameter) sum = sum + bad_term(weights);
    }
    return sum;
  }

  std::optional<Position> bad;
  Slope slope = Slope::Infinite;

 private:
  /// 0, where the derivative of the square root is infinite.
  at::Tensor bad_term(const at::Tensor& weights) const {
    const at::Tensor weight = weights.flatten()[static_cast<std::int64_t>(bad->index)];
    const double factor = slope == Slope::NotANumber ? 0.0 : 1.0;  // of infinity
    const at::Tensor root = at::sqrt((weight - weight.detach()) * factor);
    return slope == Slope::MinusInfinite ? -root : root;
  }

  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

class Halves final : public WeightSource {
 public:
  Result<void> read(std::uint32_t, std::uint64_t first, std::span<float> target) noexcept override {
    for (std::size_t i = 0; i < target.size(); ++i) {
      target[i] = static_cast<float>((first + i) % 7) * 0.5f;
    }
    return {};
  }
};

std::vector<Position> positions(const Module& module, std::size_t count) {
  std::vector<Position> all;
  std::set<std::pair<std::uint32_t, std::uint64_t>> met;
  const auto add = [&](std::uint32_t parameter, std::uint64_t index) {
    if (index >= module.parameters()[parameter].numel()) return;
    if (met.insert({parameter, index}).second) all.push_back({parameter, index});
  };
  for (std::uint64_t index = 0; index < 24; ++index) add(0, index);  // of the rows looked up
  for (std::uint32_t parameter = 1; parameter < module.parameters().size(); ++parameter) {
    const std::uint64_t numel = module.parameters()[parameter].numel();
    for (const std::uint64_t edge : {0u, 8u, 16u, 32u, 2'048u, 4'096u, 65'536u}) {
      add(parameter, edge);
      if (edge != 0) add(parameter, edge - 1);
    }
    for (std::uint64_t tail = 1; tail <= std::min<std::uint64_t>(numel, 40); ++tail) {
      add(parameter, numel - tail);
    }
  }
  for (std::uint64_t draw = 0; all.size() < count; ++draw) {
    const auto parameter = static_cast<std::uint32_t>(1 + random_word(51, 0, 2 * draw) % 2);
    add(parameter, random_word(51, 0, 2 * draw + 1) % module.parameters()[parameter].numel());
  }
  return all;
}

class BadGradient : public testing::TestWithParam<std::tuple<DType, Offload>> {
 protected:
  BadGradient() {
    set_log_level(LogLevel::Error);  // each skipped step has its line
    at::set_num_threads(1);          // tiny work: threads would only wait for each other
  }
  ~BadGradient() override { set_log_level(LogLevel::Info); }

  std::unique_ptr<Engine> make_engine(const std::function<void(Config&)>& change = {},
                                      const EngineOptions& options = {}) {
    Config config;
    config.micro_batch_size = config.accumulation_steps = config.train_batch_size = 1;
    const auto [dtype, home] = GetParam();
    config.param_dtype = config.grad_accum_dtype = dtype;
    config.loss_scale = {.initial_scale_power = 12, .hysteresis = 1};
    config.zero.stage = 3;
    config.zero.offload_param = {
        .device = home, .nvme_paths = {directory_.path()}, .max_in_cpu = 0};
    config.zero.offload_optimizer = {.device = home, .nvme_paths = {directory_.path()}};
    config.zero.param_persistence_threshold = 0;
    config.zero.sub_group_size = 2'048;
    config.artesian.device_memory = config.artesian.host_memory = std::uint64_t{32} << 20;
    if (home == Offload::Nvme) {
      config.artesian.host_memory = host_budget_for_gradients(module_, config);
    }
    if (change) change(config);
    auto engine = Engine::create(module_, config, options);
    EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
    Halves weights;
    EXPECT_TRUE((*engine)->initialize(weights).has_value());
    return std::move(engine).value();
  }
  StepResult step(Engine& engine) {
    TokenBatch batch(1, 4);
    std::iota(batch.ids().begin(), batch.ids().end(), 0);
    batch.ids().back() = 1;
    EXPECT_TRUE(engine.forward(batch.batch()).has_value());
    EXPECT_TRUE(engine.backward().has_value());
    auto result = engine.step();
    EXPECT_TRUE(result.has_value()) << result.error().to_string();
    return std::move(result).value();
  }
  /// All master weights.
  std::vector<float> weights(Engine& engine) {
    std::vector<float> all;
    for (std::uint32_t parameter = 0; parameter < module_.parameters().size(); ++parameter) {
      const auto read = engine.read_master(parameter, [&](std::span<const float> piece) {
        all.insert(all.end(), piece.begin(), piece.end());
        return Result<void>();
      });
      EXPECT_TRUE(read.has_value()) << read.error().to_string();
    }
    return all;
  }
  void run(std::span<const Position> bad);
  void expect_skipped(Engine& engine, const Position& at, Slope slope, const std::string& before);

  test_support::TemporaryDirectory directory_;
  Sum module_;
};

void BadGradient::expect_skipped(Engine& engine, const Position& at, Slope slope,
                                 const std::string& before) {
  const std::string& name = module_.parameters()[at.parameter].name;
  SCOPED_TRACE(name + "[" + std::to_string(at.index) + "], " +
               std::to_string(static_cast<int>(slope)));
  module_.bad = at;
  module_.slope = slope;
  const StepResult result = step(engine);
  module_.bad.reset();
  ASSERT_TRUE(std::isfinite(result.loss));
  ASSERT_TRUE(result.overflow);
  ASSERT_FALSE(result.end.has_value());
  ASSERT_EQ(result.overflow_parameter, name);
  ASSERT_EQ(result.bytes_nvme_write, 0u);  // neither parameters nor state
  ASSERT_EQ(engine.digest().value(), before);
}

/// One engine gets a bad gradient at each of `bad` in turn, between two good steps.
void BadGradient::run(std::span<const Position> bad) {
  const auto engine = make_engine();
  const StepResult good = step(*engine);
  ASSERT_FALSE(good.overflow);
  const std::string before = engine->digest().value();
  for (std::size_t index = 0; index < bad.size(); ++index) {
    expect_skipped(*engine, bad[index], static_cast<Slope>(index % 3), before);
    if (HasFatalFailure()) break;
  }
  const StepResult next = step(*engine);
  EXPECT_FALSE(next.overflow);
  const bool halves = std::get<0>(GetParam()) == DType::Float16;
  const auto count = static_cast<int>(bad.size());
  EXPECT_EQ(next.loss_scale, halves ? std::ldexp(good.loss_scale, -count) : 1.0);
  EXPECT_NE(engine->digest().value(), before);
  ASSERT_TRUE(engine->close().has_value());
}

TEST_P(BadGradient, AtAThousandPositionsLeavesAllAsItWas) {
  const auto [dtype, home] = GetParam();
  const auto all = positions(module_, 1000);
  // 1,000 in all modes together; an engine on a disk is slow to make.
  const std::size_t count = home == Offload::Nvme ? 36 : dtype == DType::Float16 ? 636 : 128;
  constexpr std::size_t one_engine = 12;  // halvings from 2^12 to 1
  for (std::size_t first = 0; first < count; first += one_engine) {
    run(std::span(all).subspan(first, std::min(one_engine, count - first)));
    if (HasFatalFailure()) return;
  }
}

TEST_P(BadGradient, ThatEndsTheRunLeavesTheWeightsToBeRead) {
  const auto engine = make_engine([](Config& config) { config.artesian.skipped_steps_max = 1; });
  for (int good = 0; good < 4; ++good) ASSERT_FALSE(step(*engine).end.has_value());
  const std::vector<float> before = weights(*engine);
  module_.bad = Position{0, 9};  // the first parameter: its gradient comes last
  const StepResult last = step(*engine);
  ASSERT_TRUE(last.end.has_value());
  EXPECT_TRUE(engine->weights_readable());
  EXPECT_EQ(weights(*engine), before);
  TokenBatch batch(1, 4);
  EXPECT_EQ(engine->forward(batch.batch()).error().to_string(), last.end->to_string());
  EXPECT_EQ(engine->digest().error().to_string(), last.end->to_string());
  ASSERT_TRUE(engine->close().has_value());
  EXPECT_FALSE(engine->weights_readable());
}

TEST_P(BadGradient, ThatEndsTheRunAmidAnUpdateLeavesNoWeights) {
  const auto [dtype, home] = GetParam();
  if (dtype != DType::BFloat16) GTEST_SKIP() << "these skip such steps";
  const auto engine = make_engine(
      [](Config& config) {
        config.check_grad_overflow = false;
        config.gradient_clipping = 0.0;  // nothing waits for the norm
      },
      {.spare_device = false, .share_under_backward = 1.0});
  const auto& early = engine->units_under_backward();
  ASSERT_EQ(std::count(early.begin(), early.end(), true) > 0, home == Offload::Nvme);
  ASSERT_FALSE(step(*engine).end.has_value());
  module_.bad = Position{0, 9};
  const StepResult last = step(*engine);
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(engine->weights_readable(), home != Offload::Nvme);
  const auto read = engine->read_master(1, [](std::span<const float>) { return Result<void>(); });
  EXPECT_EQ(read.has_value(), home != Offload::Nvme);
  if (!read.has_value()) {
    EXPECT_EQ(read.error().to_string(), last.end->to_string());
  }
  ASSERT_TRUE(engine->close().has_value());
}

std::string mode_name(const testing::TestParamInfo<BadGradient::ParamType>& mode) {
  const auto [dtype, home] = mode.param;
  return std::string(dtype_name(dtype)) + (home == Offload::Cpu ? "_Memory" : "_Nvme");
}

INSTANTIATE_TEST_SUITE_P(All, BadGradient,
                         testing::Combine(testing::Values(DType::Float16, DType::BFloat16,
                                                          DType::Float32),
                                          testing::Values(Offload::Cpu, Offload::Nvme)),
                         mode_name);

}  // namespace
}  // namespace artesian::zero3
