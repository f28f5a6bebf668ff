// Proves the paths of a device with memory of its own, without a GPU. Training on a SeparateDevice
// (tests/support/separate_device.h), which runs copies and kernels late, early or in any order that
// fences allow, gives the bits of training on the CPU, at every home of parameters and optimizer
// state, every dtype, and budgets down to the least that works. A missing fence, or access of the
// host to device memory, always fails there.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tests/support/separate_device.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;
using Order = SeparateDevice::Order;

class OnSeparateDevice : public Equality {
 protected:
  explicit OnSeparateDevice(const Scale& given = tiny) : Equality(given) { at::set_num_threads(1); }

  /// The same run on both devices. The run on the CPU is made once for each model and arithmetic.
  void expect_equal(const Choice& run, Order order, std::uint64_t seed) {
    SCOPED_TRACE(describe(run) + ", order " + std::to_string(static_cast<int>(order)) + ", seed " +
                 std::to_string(seed));
    const Outcome& reference = on_cpu(run);
    SeparateDevice device(order, seed);
    device.micro_batches_at_once = micro_batches_at_once(run);
    separate_device = true;
    Config config = config_of(run);
    separate_device = false;
    const Outcome outcome = train(run, config, {.backend = &device});
    expect_same(outcome, reference);
    EXPECT_EQ(device.races, 0u);
    EXPECT_EQ(device.bytes_registered(), 0u);
    if (!outcome.steps.empty()) check_bytes(run, outcome);
  }

  const Outcome& on_cpu(const Choice& run) {
    const std::array<int, 3> group{run[Dtype], run[Accumulation], run[Head]};
    if (references_.count(group) == 0) {
      Choice in_memory{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]};
      in_memory[Masters] = 1;
      references_[group] = train(in_memory);
    }
    return references_[group];
  }

  /// Gradients of every parameter are copied to the host, unless its state is on the device.
  void check_bytes(const Choice& run, const Outcome& outcome) const {
    std::uint64_t numel = 0;
    for (const auto& parameter : module_of(run).parameters()) numel += parameter.numel();
    const bool all_on_device = run[ParamHome] == 0 && run[OptimizerHome] == 0;
    const std::uint64_t size = run[Dtype] == 0 ? 4 : 2;
    // Micro-batches that run layer by layer have only their sum copied.
    const std::uint64_t micro_batches =
        run[Schedule] < 2 ? std::uint64_t{1} << run[Accumulation] : 1;
    if (outcome.updated_by_device == 0 && run[Persistence] == 0 &&
        run[Head] == 0) {  // tied: no table that is only looked up
      EXPECT_GE(outcome.steps[3].bytes_d2h, numel / 2 * size * micro_batches);
      std::uint64_t bytes_h2d = 0;  // of all steps: a skipped one may copy nothing
      for (const StepResult& step : outcome.steps) bytes_h2d += step.bytes_h2d;
      EXPECT_GT(bytes_h2d, 0u);
    }
    if (all_on_device) {
      EXPECT_LT(outcome.steps[3].bytes_d2h, numel * size);
    }
  }

  /// Trains a few steps. Returns how much host memory is page-locked meanwhile.
  struct PageLocked {
    std::uint64_t bytes = 0;
    std::uint64_t pool_bytes = 0;
  };
  PageLocked train_some(const Choice& run, bool pin_memory, SeparateDevice& device) {
    device.micro_batches_at_once = micro_batches_at_once(run);
    separate_device = true;
    Config config = config_of(run);
    separate_device = false;
    config.zero.offload_param.pin_memory = pin_memory;
    const auto engine = make_engine(run, config, {.backend = &device});
    RandomWeights weights(module_of(run).parameters(), 1);
    EXPECT_TRUE(engine->initialize(weights).has_value());
    if (run[Schedule] == 4) {
      EXPECT_GT(engine->placement().inputs.bytes_in(Tier::Nvme), 0u);
    }
    std::vector<StepResult> steps;
    run_steps(*engine, run, 0, 3, steps);
    const PageLocked locked{device.bytes_registered(), engine->placement().host_pool_bytes};
    EXPECT_TRUE(engine->close().has_value());
    return locked;
  }

  std::map<std::array<int, 3>, Outcome> references_;
};

int runs() {
  return std::getenv("ARTESIAN_SOAK") != nullptr ? 400 : 12;
}

TEST_F(OnSeparateDevice, EveryHomeAndDtypeGivesTheBitsOfTheCpu) {
  std::uint64_t draw = 0;
  for (const int param : {0, 1, 2}) {
    for (const int optimizer : {0, 1, 2}) {
      for (const int dtype : {0, 1, 2}) {
        Choice run{};
        for (std::size_t factor = 0; factor < factor_count; ++factor) {
          run[factor] = static_cast<int>(random_word(11, 0, draw++) %
                                         static_cast<std::uint64_t>(levels[factor]));
        }
        run[ParamHome] = param;
        run[OptimizerHome] = optimizer;
        run[Dtype] = dtype;
        expect_equal(run, static_cast<Order>(draw % 3), draw);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OnSeparateDevice, AnyLimitsAndAnyOrderGiveTheBitsOfTheCpu) {
  const char* given = std::getenv("ARTESIAN_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 5;
  std::printf("ARTESIAN_SEED=%llu\n", static_cast<unsigned long long>(seed));
  for (int number = 0; number < runs(); ++number) {
    Choice run{};
    for (std::size_t factor = 0; factor < factor_count; ++factor) {
      const std::uint64_t word = random_word(seed, static_cast<std::uint64_t>(number), factor);
      run[factor] = static_cast<int>(word % static_cast<std::uint64_t>(levels[factor]));
    }
    expect_equal(run, static_cast<Order>(number % 3), seed + static_cast<std::uint64_t>(number));
    if (HasFatalFailure()) return;
  }
}

TEST_F(OnSeparateDevice, SixteenBitComputeIsAliasedOnTheDeviceAndHasTheBitsOfTheCpu) {
  for (const int dtype : {3, 4}) {
    for (const int home : {0, 1, 2}) {
      Choice run{};
      run[ParamHome] = run[OptimizerHome] = home;
      run[Budget] = home == 0 ? 2 : 0;
      run[Bucket] = run[Live] = run[Reuse] = run[Accumulation] = 1;
      run[Dtype] = dtype;
      expect_equal(run, Order::Random, static_cast<std::uint64_t>(dtype * 3 + home));
      if (HasFatalFailure()) return;
    }
  }
}

// Budgets from no spare memory to enough for all units, with steps that overflow.
TEST_F(OnSeparateDevice, UnitsOfWhichItHoldsAllAreUpdatedThereWithTheBitsOfTheCpu) {
  std::set<std::ptrdiff_t> counts;
  std::uint64_t seed = 0;
  for (const int dtype : {0, 1, 2, 3, 4}) {
    for (const int param : {0, 2}) {
      Choice run = random_choice(17, ++seed);
      run[ParamHome] = param;
      run[OptimizerHome] = 2;
      run[Budget] = run[Persistence] = 0;
      run[Live] = 2;
      run[Dtype] = dtype;
      separate_device = true;
      Config config = config_of(run);
      separate_device = false;
      const std::uint64_t least = *config.artesian.device_memory;
      for (const std::uint64_t spare : {0u, 150'000u, 400'000u, 4'000'000u}) {
        SCOPED_TRACE(describe(run) + ", spare " + std::to_string(spare));
        config.artesian.device_memory = least + spare;
        SeparateDevice device(static_cast<Order>(seed % 3), seed);
        device.micro_batches_at_once = micro_batches_at_once(run);
        const Outcome outcome = train(run, config, {.backend = &device});
        expect_same(outcome, on_cpu(run));
        ASSERT_FALSE(HasFatalFailure());
        EXPECT_EQ(device.races, 0u);
        counts.insert(outcome.updated_by_device);
        const auto units = static_cast<std::uint64_t>(outcome.updated_by_device);
        EXPECT_LE(device.update_calls, units * scale.steps);  // for any number of sub-groups
        EXPECT_EQ(device.update_calls == 0, units == 0);
      }
    }
  }
  EXPECT_GT(counts.size(), 3u);  // some units, and all
  EXPECT_TRUE(counts.contains(0));
}

/// A micro-batch looks up about 240 rows of 512 bytes, which are added through 64 KiB.
class WithManyRows : public OnSeparateDevice {
 protected:
  WithManyRows() : OnSeparateDevice({.vocab = 2000, .samples = 8, .length = 32, .steps = 4}) {}
};

TEST_F(WithManyRows, OnItGradientsAreAddedByUnitAndRowsComeTogether) {
  for (const Order order : {Order::Late, Order::Early, Order::Random}) {
    Choice run{2, 2, 0, 1, 2, 2, 2, 0, 2, 2, 0, 3, 1, 1, 0, 1, 0, 0};
    separate_device = true;
    Config config = config_of(run);
    separate_device = false;
    *config.artesian.device_memory += 32'000'000;
    SeparateDevice device(order, 9);
    const Outcome outcome = train(run, config, {.backend = &device});
    expect_same(outcome, on_cpu(run));
    EXPECT_EQ(outcome.updated_by_device, 6);
    // Of five units in each micro-batch, as they are computed; of two tables in each step, whose
    // rows of both micro-batches fill the buffer at most eight times.
    EXPECT_EQ(device.gradient_calls[DType::BFloat16], scale.steps * 2 * 5);
    EXPECT_LE(device.gradient_calls[DType::Float32], scale.steps * (8 + 1));
    EXPECT_LE(device.small_copies, scale.steps * 2);
    EXPECT_EQ(device.races, 0u);
  }
}

TEST_F(OnSeparateDevice, MicroBatchesThatRunLayerByLayerSendTheHostOneSum) {
  for (const int dtype : {0, 1, 2, 3, 4}) {
    Choice run{1, 1, 2, 2, 2, 2, 2, 0, 2, 2, 1, dtype, 2, 1};  // four micro-batches
    std::array<std::uint64_t, 2> bytes{};
    for (const int together : {0, 1}) {
      run[Schedule] = 1 + together;
      SeparateDevice device(static_cast<Order>(dtype % 3), static_cast<std::uint64_t>(dtype));
      device.micro_batches_at_once = micro_batches_at_once(run);
      separate_device = true;
      const Outcome outcome = train(run, config_of(run), {.backend = &device});
      separate_device = false;
      expect_same(outcome, on_cpu(run));
      ASSERT_FALSE(HasFatalFailure()) << describe(run);
      EXPECT_EQ(device.races, 0u);
      bytes[static_cast<std::size_t>(together)] = outcome.steps[6].bytes_d2h;
    }
    std::uint64_t numel = 0;
    const Module& module = module_of(run);
    for (const StageSpec& stage : module.stages()) {
      for (const auto parameter : graph_parameters(stage)) {
        numel += module.parameters()[parameter].numel();
      }
    }
    EXPECT_EQ(bytes[0] - bytes[1], 3 * numel * (dtype == 0 ? 4 : 2)) << describe(run);
  }
}

/// Adds two parameters to its input, in each of its stages: autograd returns one tensor as the
/// gradient of both and of the input.
class OneGradient final : public Module {
 public:
  OneGradient() {
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      parameters_.push_back({.name = name, .shape = {samples, width}, .standard_deviation = 1.0});
    }
    for (std::uint32_t stage = 0; stage < 3; ++stage) {
      StageSpec& made = stages_.emplace_back();
      made.name = std::to_string(stage);
      made.parameters = {2 * stage, 2 * stage + 1};
    }
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch&) override {
    const at::Tensor output = input + parameters[0] + parameters[1];
    return stage + 1 < stages_.size() ? output : output.pow(3).mean();
  }

  static constexpr std::int64_t samples = 3;
  static constexpr std::int64_t width = 5;

 private:
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

TEST_F(OnSeparateDevice, AGradientThatSeveralShareIsNotAddedToInPlace) {
  const Choice run{1, 1, 2, 2, 2, 2, 2, 0, 2, 2, 1, 0, 2, 1, 2};
  std::array<std::vector<StepResult>, 2> steps;
  std::array<std::string, 2> digests;
  for (const std::size_t separate : {0u, 1u}) {
    OneGradient module;
    SeparateDevice device(Order::Random, 3);
    device.micro_batches_at_once = micro_batches_at_once(run);
    EngineOptions options;
    if (separate == 1) options.backend = &device;
    auto engine = Engine::create(module, config_of(run), options).value();
    RandomWeights weights(module.parameters(), 1);
    ASSERT_TRUE(engine->initialize(weights).has_value());
    for (std::uint64_t step = 0; step < 4; ++step) {
      std::vector<at::Tensor> inputs;
      for (std::uint64_t micro = 0; micro < 4; ++micro) {
        at::Tensor& input = inputs.emplace_back(at::empty({module.samples, module.width}));
        for (std::int64_t at = 0; at < input.numel(); ++at) {
          input.data_ptr<float>()[at] =
              static_cast<float>(random_word(5, 4 * step + micro, static_cast<std::uint64_t>(at)) %
                                 1000) *
              1e-3f;
        }
      }
      const at::Tensor none;
      std::vector<Batch> batches;
      for (const at::Tensor& input : inputs) batches.push_back({input, none});
      const auto losses = engine->forward_backward(batches);
      ASSERT_TRUE(losses.has_value()) << losses.error().to_string();
      steps[separate].push_back(engine->step().value());
    }
    digests[separate] = engine->digest().value();
    EXPECT_TRUE(engine->close().has_value());
    EXPECT_EQ(device.races, 0u);
  }
  expect_same({.steps = steps[1], .digest = digests[1]}, {.steps = steps[0], .digest = digests[0]});
}

// All copies pass through buffers: parameters and kept inputs from NVMe, and gradients; updated
// parameters, of units that are on the device and of those whose home that is.
constexpr std::array<Choice, 2> through_buffers{
    {{2, 2, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 4, 1, 0, 0},
     {0, 2, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0}}};

TEST_F(OnSeparateDevice, BuffersOfCopiesArePageLockedWhateverPinMemorySays) {
  for (const Choice& run : through_buffers) {
    SCOPED_TRACE(describe(run));
    for (const bool pin_memory : {true, false}) {
      SeparateDevice device(Order::Random, 7);
      const PageLocked locked = train_some(run, pin_memory, device);
      EXPECT_GT(device.bytes_to_device(), 0u);
      EXPECT_GT(device.bytes_to_host(), 0u);
      EXPECT_EQ(device.bytes_pageable(), 0u) << pin_memory;
      EXPECT_EQ(device.bytes_registered(), 0u) << "page-locked after its end";
      EXPECT_GT(locked.bytes, 0u);
      EXPECT_EQ(locked.bytes == locked.pool_bytes, pin_memory) << locked.bytes;
    }
  }
}

TEST_F(OnSeparateDevice, BuffersOfCopiesComeFirstWhereNotAllCanBePageLockedAndThatIsSaid) {
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) { said += std::string(line) + "\n"; });
  const auto says = [&](const char* text) { return said.find(text) != std::string::npos; };
  for (const Choice& run : through_buffers) {
    SCOPED_TRACE(describe(run));
    SeparateDevice unlimited;
    const std::uint64_t buffers = train_some(run, /*pin_memory=*/false, unlimited).bytes;
    EXPECT_FALSE(says("page-locked")) << said;  // as the user asked
    for (const std::uint64_t most : {buffers, std::uint64_t{0}}) {
      for (const bool pin_memory : {true, false}) {
        said.clear();
        SeparateDevice device;
        device.registered_bytes_max = most;
        EXPECT_EQ(train_some(run, pin_memory, device).bytes, most);
        EXPECT_EQ(device.bytes_pageable() == 0, most == buffers);
        EXPECT_EQ(says("host memory is not page-locked for separate:0"), pin_memory) << said;
        EXPECT_EQ(says("but for the buffers that copies pass through: copies of the rest block"),
                  pin_memory && most == buffers)
            << said;
        EXPECT_EQ(says("the buffers that copies pass through are not page-locked for separate:0"),
                  !pin_memory && most == 0)
            << said;
      }
    }
    said.clear();
  }
  set_log_sink({});
}

TEST_F(OnSeparateDevice, AnArenaThatDoesNotFitIsRefusedByName) {
  const Choice run{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, 1, 0, 0};
  SeparateDevice device;
  device.bytes_max = 4096;
  const auto engine = Engine::create(module_of(run), config_of(run), {.backend = &device});
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code, ErrorCode::Exhausted);
  EXPECT_NE(engine.error().message.find("artesian.device_memory"), std::string::npos);
}

/// Trains until the device fails, if it does; returns the first error.
Error train_until_failure(Engine& engine, const Config& config, const Scale& scale) {
  TokenBatch batch(scale.samples, scale.length);
  for (std::size_t step = 0; step < scale.steps; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      const auto loss = engine.forward(batch.batch());
      if (!loss.has_value()) return loss.error();
      const auto backward = engine.backward();
      if (!backward.has_value()) return backward.error();
    }
    const auto result = engine.step();
    if (!result.has_value()) return result.error();
  }
  return {};
}

TEST_F(OnSeparateDevice, ADeviceThatFailsEndsTheRunWithItsErrorAndNothingElse) {
  const Choice run{2, 2, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0};
  for (const std::uint64_t calls : {3u, 40u, 150u, 400u, 900u, 2000u}) {
    SCOPED_TRACE(calls);
    SeparateDevice device(Order::Random, calls);
    const Config config = config_of(run);
    separate_device = true;
    auto engine = Engine::create(module_of(run), config_of(run), {.backend = &device});
    separate_device = false;
    ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
    RandomWeights weights(module_of(run).parameters(), 1);
    ASSERT_TRUE((*engine)->initialize(weights).has_value());
    device.calls_until_failure = calls;
    const Error failed = train_until_failure(**engine, config, scale);
    EXPECT_EQ(failed.code, ErrorCode::Io);
    EXPECT_NE(failed.message.find("the device has failed"), std::string::npos) << failed.message;
    const auto later = (*engine)->step();
    ASSERT_FALSE(later.has_value());
    EXPECT_EQ(later.error().message, failed.message);
    EXPECT_FALSE((*engine)->close().has_value());
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

}  // namespace
}  // namespace artesian::zero3
