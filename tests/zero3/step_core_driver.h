// A driver of StepCore for tests, which has no tensors: forward enters the stages' units in order,
// backward in reverse, and gradients are numbers of a counter.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/support/damage_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/core_on_nvme.h"
#include "tests/zero3/small_model.h"
#include "zero3/plan/step_accesses.h"
#include "zero3/step/step_core.h"

namespace artesian::zero3 {

inline constexpr std::uint64_t row_width = 16;

struct Case {
  DType dtype = DType::Float32;
  double clipping = 1.0;       // of 0.001, every step is clipped
  bool check_overflow = true;  // bf16: false makes updates under backward final
  bool speculative = true;
  std::uint64_t accumulation = 2;
  double learning_rate = 1e-2;
  Offload home = Offload::Nvme;  // of parameters and optimizer state
  std::uint64_t host_more = 0;   // bytes of host memory, beside the least
  std::uint64_t sub_group = 2048;
  bool split_master = true;
  std::uint32_t hysteresis = 2;
  std::vector<GroupOptions> groups{};
  std::uint64_t device = 1 << 20;  // bytes
};

/// A model of which one block is frozen, and norms and biases are a group of their own.
inline SmallModel partly_frozen_model() {
  SmallModel model = make_small_model(24, 16, 3);
  for (ParameterSpec& parameter : model.parameters) {
    parameter.trainable = parameter.name.find("h.1.") == std::string::npos;
    parameter.group = parameter.shape.size() == 1 ? 1 : 0;
  }
  return model;
}

/// The constants of its two groups.
inline std::vector<GroupOptions> decay_and_none() {
  return {{}, {.lr = 3e-3, .weight_decay = 0.0, .beta2 = 0.99}};
}

/// Runs a small model: forward enters the stages' units in order, backward in reverse. Each
/// parameter's gradient is made from the numbers of its step and micro-batch.
class Driver {
 public:
  explicit Driver(
      const Case& run, const SmallModel& model = make_small_model(24, 16, 3),
      const std::function<void(Config&)>& adjust = [](Config&) {}, FileSystem* files = nullptr,
      comm::Group* group = nullptr)
      : config_(config_on_nvme(directory_.path())) {
    config_.accumulation_steps = run.accumulation;
    config_.param_dtype = config_.grad_accum_dtype = run.dtype;
    config_.gradient_clipping = run.clipping;
    config_.check_grad_overflow = run.check_overflow;
    config_.optimizer.lr = run.learning_rate;
    config_.loss_scale = {
        .initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = run.hysteresis};
    config_.zero.offload_param.device = config_.zero.offload_optimizer.device = run.home;
    config_.zero.sub_group_size = run.sub_group;
    config_.artesian.speculative_update = run.speculative;
    adjust(config_);
    const ModelShape shape{model.parameters, model.stages};
    StepCoreOptions options = options_on_nvme(shape, config_, run.split_master, run.device);
    options.budgets.host += run.host_more;
    options.groups = run.groups;
    options.share_under_backward = 1.0;
    options.files = files;
    options.group = group;
    auto made = StepCore::create(shape, config_, options, executor_);
    EXPECT_EQ(error_of(made), "");
    core = std::move(made).value();
  }
  ~Driver() { EXPECT_EQ(error_of(core->close()), ""); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  void fill() {
    RandomWeights weights(core->shape().parameters, 1);
    ASSERT_EQ(error_of(core->initialize(weights, {})), "");
  }

  /// Enters the first `stages` of a forward.
  void enter_forward(std::size_t stages, bool leave_last = true) {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      ASSERT_EQ(error_of(core->enter(core->layout().stages[stage])), "");
      if (!leave_last && stage + 1 == stages) return;
      ASSERT_EQ(error_of(core->leave(core->layout().stages[stage])), "");
    }
  }
  void forward() {
    ASSERT_EQ(error_of(core->begin_forward(1)), "");
    enter_forward(stages().size());
    const double loss[] = {1.5};
    ASSERT_EQ(error_of(core->end_forward(loss)), "");
  }

  /// The gradient of a parameter, or of rows of it, in the micro-batch of this seed.
  static std::vector<float> numbers(std::uint64_t seed, std::uint32_t parameter,
                                    std::uint64_t count, double scale) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      const double unit = static_cast<double>(random_word(seed, parameter, i) >> 11) * 0x1p-53;
      values[static_cast<std::size_t>(i)] = static_cast<float>((unit - 0.5) * scale);
    }
    return values;
  }
  /// Gradients of the last `count` stages. `scale` 0: all are zero.
  void add_gradients(std::uint64_t seed, std::size_t count, double scale = 1.0) {
    for (std::size_t stage = stages().size(); stage-- > stages().size() - count;) {
      const auto units = backward_units(core->layout(), stages(), stage);
      ASSERT_EQ(error_of(core->enter(units)), "");
      std::map<std::uint32_t, std::vector<ParameterGradient>> by_unit;
      std::vector<std::vector<float>> keep;
      for (const std::uint32_t parameter : graph_parameters(stages()[stage])) {
        if (!core->shape().parameters[parameter].trainable) continue;
        const ParameterPlace& place = core->layout().places[parameter];
        keep.push_back(numbers(seed, parameter, place.numel, scale));
        by_unit[place.unit].push_back({parameter, keep.back().data()});
      }
      for (const auto& [unit, list] : by_unit) ASSERT_EQ(error_of(core->add(unit, list)), "");
      if (stages()[stage].lookup.has_value()) add_rows(seed, *stages()[stage].lookup, scale);
      ASSERT_EQ(error_of(core->leave(units)), "");
      ASSERT_EQ(error_of(core->stage_accumulated(stage)), "");
    }
  }
  void backward(std::uint64_t seed, double scale = 1.0, const BackwardRequest& request = {}) {
    ASSERT_EQ(error_of(core->begin_backward(request)), "");
    add_gradients(seed, stages().size(), scale);
    ASSERT_EQ(error_of(core->end_backward(4)), "");
  }
  void micro_batch(std::uint64_t seed, double scale = 1.0, const BackwardRequest& request = {}) {
    forward();
    backward(seed, scale, request);
  }
  /// Step `number` of a run, with as many micro-batches as the configuration says.
  StepResult step(std::uint64_t number, double scale = 1.0) {
    for (std::uint64_t micro = 0; micro < config_.accumulation_steps; ++micro) {
      micro_batch(number * 10 + micro, scale);
    }
    auto result = core->step();
    EXPECT_EQ(error_of(result), "");
    norms.push_back(std::bit_cast<std::uint64_t>(result->grad_norm));
    taken_back += result->taken_back;
    return std::move(result).value();
  }
  /// Overwrites the content of the swap files, past the page cache.
  void damage_swap_files() const {
    EXPECT_GT(test_support::damage_files(directory_.path(), 65536), 0);
  }
  std::string digest() { return core->digest().value(); }
  std::vector<float> read(std::uint32_t parameter, StateKind kind = StateKind::Master) {
    std::vector<float> values;
    const auto sink = [&](std::span<const float> piece) {
      values.insert(values.end(), piece.begin(), piece.end());
      return Result<void>();
    };
    EXPECT_EQ(error_of(core->read_state(parameter, kind, sink)), "");
    return values;
  }
  const std::vector<StageSpec>& stages() const { return core->shape().stages; }

  std::unique_ptr<StepCore> core;
  std::vector<std::uint64_t> norms;
  int taken_back = 0;

 private:
  void add_rows(std::uint64_t seed, std::uint32_t parameter, double scale) {
    struct Rows {
      std::vector<std::int64_t> rows{3, 7, 3};
      std::vector<float> gradient;
    };
    auto rows = std::make_shared<Rows>();
    rows->gradient = numbers(seed + 1'000'000, parameter, rows->rows.size() * row_width, scale);
    core->add_rows({.parameter = parameter,
                    .rows = rows->rows,
                    .gradient = rows->gradient.data(),
                    .width = row_width,
                    .keep = rows});
  }

  test_support::TemporaryDirectory directory_;
  SerialExecutor executor_;
  Config config_;
};

}  // namespace artesian::zero3
