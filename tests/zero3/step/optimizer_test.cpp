// Proves the update by groups of parameters against the naive kernel, one call a parameter, bit for
// bit: weights, moments and gathered parameters, over sub-groups and slices that group borders cut
// anywhere, dtypes and homes; with counts of updates by parameter, parameters without a gradient in
// some steps, and units that are updated ahead and rolled back. Also proves that groups are
// checked.
#include "zero3/step/optimizer.h"

#include <array>
#include <cstring>

#include "base/random.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/split_master.h"
#include "tests/zero3/tiers.h"
#include "zero3/step/gradients.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

/// Norms and biases without decay at another rate, the last matrix of a block with other betas.
SmallModel grouped_model() {
  SmallModel model = make_small_model(100, 64, 2);
  for (ParameterSpec& parameter : model.parameters) {
    if (parameter.shape.size() == 1) parameter.group = 1;
    if (parameter.name.ends_with(".out")) parameter.group = 2;
  }
  return model;
}

const std::vector<GroupOptions> groups{
    {}, {.lr = 3e-3, .weight_decay = 0.0}, {.beta1 = 0.5, .beta2 = 0.8, .eps = 1e-3}};

OptimizerConfig adam() {
  return {.lr = 1e-3, .weight_decay = 0.1};
}

/// One of each optimizer that has rules of its own.
std::vector<OptimizerConfig> others() {
  std::vector<OptimizerConfig> all(5, adam());
  all[0].type = all[1].type = OptimizerType::Sgd;
  all[0].nesterov = true;
  all[1].dampening = 0.5;
  all[2].type = OptimizerType::Adagrad;
  all[2].lr_decay = 0.125;
  all[3].type = OptimizerType::RmsProp;
  all[4].type = OptimizerType::Lion;
  all.push_back(all[3]);
  all.back().beta1 = 0.0;  // RMSprop without momentum keeps no buffer
  return all;
}

struct How {
  DType dtype = DType::Float32;
  std::uint64_t sub_group = 2048;
  Offload home = Offload::Nvme;
  bool split = true;
  enum { AtOnce, Ahead, TakenBack } when = AtOnce;
  OptimizerConfig optimizer = adam();
  DType moments = DType::Float32;
};

/// Weights and moments of every parameter, updated by the naive kernel.
class Naive {
 public:
  Naive(const SmallModel& model, const How& how)
      : model_(model), moments_(moments_of(how.optimizer)), how_(how), dtype_(how.dtype) {
    RandomWeights weights(model.parameters, 5);
    for (std::uint32_t index = 0; index < model.parameters.size(); ++index) {
      auto& state = parameters_.emplace_back();
      for (auto* array : {&state.master, &state.exp_avg, &state.exp_avg_sq}) {
        array->resize(model.parameters[index].numel());
      }
      state.rounded.resize(state.master.size() * dtype_size(dtype_));
      EXPECT_TRUE(weights.read(index, 0, state.master).has_value());
      const bool settled = dtype_ == DType::BFloat16 && moments_.squares.empty();
      for (float& weight : state.master) {
        if (settled) weight = kernels::settle_tie(weight);
      }
    }
  }

  void update(std::uint32_t index, const std::vector<std::byte>& gradient, DType dtype,
              const StepConstants& constants) {
    auto& state = parameters_[index];
    const auto step = make_update_step(constants, model_.parameters[index].group, ++state.count);
    kernels::AdamArrays arrays{.param = state.master.data(),
                               .grad = gradient.data(),
                               .grad_dtype = dtype,
                               .param_out = state.rounded.data(),
                               .param_out_dtype = dtype_};
    if (!moments_.average.empty()) arrays.exp_avg = state.exp_avg.data();
    if (!moments_.squares.empty()) arrays.exp_avg_sq = state.exp_avg_sq.data();
    kernels::update_naive(arrays, state.master.size(), step);
    if (how_.moments == DType::Float32) return;
    for (auto* array : {&state.exp_avg, &state.exp_avg_sq}) {
      for (float& moment : *array) moment = bf16_to_float(float_to_bf16(moment));
    }
  }

  std::string digest() const {
    kernels::Digest total;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      const std::string& name = model_.parameters[index].name;
      total.update(name.data(), name.size() + 1);
      const auto& state = parameters_[index];
      for (const auto* array : {&state.master, &state.exp_avg, &state.exp_avg_sq}) {
        if (array == &state.exp_avg && moments_.average.empty()) continue;
        if (array == &state.exp_avg_sq && moments_.squares.empty()) continue;
        kernels::Digest part;
        part.update(array->data(), array->size() * 4);
        total.update(part.hex().data(), part.hex().size());
      }
    }
    return total.hex();
  }

  std::uint64_t count(std::uint32_t index) const { return parameters_[index].count; }
  const std::vector<float>& master(std::uint32_t index) const { return parameters_[index].master; }

 private:
  struct State {
    std::vector<float> master, exp_avg, exp_avg_sq;
    std::vector<std::byte> rounded;
    std::uint64_t count = 0;
  };
  const SmallModel& model_;
  const Moments moments_;
  const How how_;
  const DType dtype_;
  std::vector<State> parameters_;
};

class OptimizerOf : public testing::TestWithParam<How> {
 protected:
  OptimizerOf()
      : tiers_(grouped_model(), {.dtype = GetParam().dtype,
                                 .compute = GetParam().dtype,
                                 .sub_group = GetParam().sub_group,
                                 .home = GetParam().home,
                                 .split_master = GetParam().split,
                                 .optimizer = GetParam().optimizer,
                                 .moments = GetParam().moments}),
        naive_(tiers_.model, GetParam()),
        gradients_(*tiers_.state),
        optimizer_(*tiers_.state, *tiers_.residency, {.updates = [this](std::uint32_t parameter) {
          return !skips_ || gradients_.reached(parameter);
        }}) {
    RandomWeights weights(tiers_.model.parameters, 5);
    EXPECT_TRUE(optimizer_.initialize(weights, {}).has_value());
  }

  std::vector<std::byte> gradient_of(std::uint64_t step, std::uint32_t parameter) const {
    const std::uint64_t count = tiers_.model.parameters[parameter].numel();
    std::vector<float> values(count);
    for (std::uint64_t index = 0; index < count; ++index) {
      const auto word = static_cast<std::int64_t>(random_word(step, parameter, index) >> 40);
      values[index] = static_cast<float>(word - (1 << 23)) * 0x1p-24f;
    }
    std::vector<std::byte> bytes(count * dtype_size(GetParam().dtype));
    static_cast<void>(kernels::narrow(values.data(), bytes.data(), GetParam().dtype, count));
    return bytes;
  }

  void train_step(std::uint64_t step);
  void begin(const StepConstants& constants);
  void expect_same();

  bool skips_ = false;
  Tiers tiers_;
  Naive naive_;
  Gradients gradients_;
  Optimizer optimizer_;
};

/// As an engine does it, with the first units updated ahead of the rest if asked for.
void OptimizerOf::begin(const StepConstants& constants) {
  if (GetParam().when != How::AtOnce) {
    const std::vector<std::uint32_t> ahead{2, 1};
    StepConstants tried = constants;
    const bool back = GetParam().when == How::TakenBack;
    if (back) tried.grad_multiplier *= 3;
    ASSERT_TRUE(optimizer_.begin_ahead(tried, ahead, /*speculative=*/back).has_value());
    for (const std::uint32_t unit : ahead) {
      optimizer_.gradient_is_final(unit);
      ASSERT_TRUE(optimizer_.update_ahead().has_value());
    }
    if (back) {
      ASSERT_TRUE(optimizer_.take_back().has_value());
    }
  }
  ASSERT_TRUE(optimizer_.begin_step(constants).has_value());
}

void OptimizerOf::train_step(std::uint64_t step) {
  const auto constants =
      make_step_constants(GetParam().optimizer, groups, 1e-3 / static_cast<double>(step), 0.5);
  gradients_.begin_step();
  for (std::uint32_t parameter = 0; parameter < tiers_.model.parameters.size(); ++parameter) {
    const auto gradient = gradient_of(step, parameter);
    const bool reached = !skips_ || random_word(8, step, parameter) % 3 != 0;
    const ParameterGradient one{parameter, gradient.data()};
    const std::uint32_t unit = tiers_.layout().places[parameter].unit;
    if (reached) {
      ASSERT_TRUE(gradients_.add(unit, {&one, 1}).has_value());
      naive_.update(parameter, gradient, GetParam().dtype, constants);
    }
  }
  ASSERT_TRUE(gradients_.complete().has_value());
  begin(constants);
  ASSERT_TRUE(optimizer_.finish_step().has_value());
}

void OptimizerOf::expect_same() {
  EXPECT_EQ(optimizer_.digest(tiers_.model.parameters).value(), naive_.digest());
  const std::uint64_t size = dtype_size(GetParam().dtype);
  for (std::uint32_t unit = 0; unit < tiers_.layout().units.size(); ++unit) {
    if (tiers_.residency->state(unit) == tiering::SlotState::Absent) {
      ASSERT_TRUE(tiers_.residency->start(unit, aio::Priority::Demand).has_value());
    }
    ASSERT_TRUE(tiers_.residency->acquire(unit).has_value());
    for (const auto parameter : tiers_.layout().units[unit].parameters) {
      const auto& master = naive_.master(parameter);
      std::vector<std::byte> rounded(master.size() * size);
      static_cast<void>(
          kernels::narrow(master.data(), rounded.data(), GetParam().dtype, master.size()));
      const std::uint64_t first = tiers_.layout().places[parameter].first;
      EXPECT_EQ(
          std::memcmp(tiers_.residency->data(unit) + first * size, rounded.data(), rounded.size()),
          0)
          << tiers_.model.parameters[parameter].name;
      EXPECT_EQ(optimizer_.update_count(parameter), naive_.count(parameter));
    }
    ASSERT_TRUE(tiers_.residency->unpin(unit).has_value());
  }
}

TEST_P(OptimizerOf, GroupsEqualsTheNaiveKernelParameterByParameter) {
  if (GetParam().when == How::TakenBack) {
    ASSERT_TRUE(tiers_.state->reserve_shadows({false, true, true, false}).has_value());
  }
  for (std::uint64_t step = 1; step <= 2; ++step) train_step(step);
  expect_same();
  skips_ = true;  // parameters that a step does not reach
  for (std::uint64_t step = 3; step <= 6; ++step) train_step(step);
  expect_same();
  EXPECT_NE(optimizer_.update_count(0), optimizer_.update_count(2));
}

std::vector<How> cases() {
  std::vector<How> all;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const std::uint64_t sub_group : {2048, 6144, 1 << 18}) {
      all.push_back({.dtype = dtype, .sub_group = sub_group});
    }
    all.push_back({.dtype = dtype, .home = Offload::Cpu});
    all.push_back({.dtype = dtype, .when = How::Ahead});
    all.push_back({.dtype = dtype, .when = How::TakenBack});
  }
  all.push_back({.dtype = DType::BFloat16, .sub_group = 6144, .split = false});
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {  // and moments in 2 bytes
    constexpr DType half = DType::BFloat16;
    all.push_back({.dtype = dtype, .sub_group = 6144, .moments = half});
    all.push_back({.dtype = dtype, .when = How::TakenBack, .moments = half});
    all.push_back(
        {.dtype = dtype, .home = Offload::Cpu, .optimizer = others()[4], .moments = half});
  }
  for (const OptimizerConfig& other : others()) {
    all.push_back({.dtype = DType::Float32, .optimizer = other});
    all.push_back({.dtype = DType::BFloat16, .when = How::TakenBack, .optimizer = other});
    all.push_back(
        {.dtype = DType::BFloat16, .home = Offload::Cpu, .split = false, .optimizer = other});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerOf, testing::ValuesIn(cases()));

TEST(ParameterGroups, WithoutConstantsOfTheirOwnHaveTheConfigs) {
  const OptimizerConfig config{.lr = 0.0, .weight_decay = 0.1};
  const auto one = make_step_constants(config, {}, 0.25, 1.0);
  ASSERT_EQ(one.groups.size(), 1u);
  const auto two = make_step_constants(config, std::vector<GroupOptions>(2), 0.25, 1.0);
  for (const std::uint32_t group : {0u, 1u}) {
    EXPECT_EQ(make_update_step(two, group, 7), make_update_step(one, 0, 7));
  }
}

TEST(ParameterGroups, FollowTheScheduleInProportion) {
  const OptimizerConfig config{.lr = 0.5};
  const auto constants = make_step_constants(config, std::vector<GroupOptions>{{.lr = 2.0}, {}},
                                             /*lr=*/0.125, 1.0);
  EXPECT_EQ(constants.groups[0].lr, 0.5);
  EXPECT_EQ(constants.groups[1].lr, 0.125);
  OptimizerConfig muon{.lr = 0.5};
  muon.muon_lr = 4.0;  // of hidden matrices, scaled by the schedule and their group's rate
  const auto of_matrices = make_step_constants(muon, std::vector<GroupOptions>{{.lr = 2.0}, {}},
                                               /*lr=*/0.125, 1.0);
  EXPECT_EQ(of_matrices.groups[0].matrix_lr, 4.0);
  EXPECT_EQ(of_matrices.groups[1].matrix_lr, 1.0);
}

// Against constants written here: the naive update above takes its constants from the function
// under test.
TEST(ParameterGroups, HaveEachConstantThatIsTheirOwnAndTheConfigsOthers) {
  const OptimizerConfig config{
      .lr = 0.5, .beta1 = 0.75, .beta2 = 0.875, .eps = 0.25, .weight_decay = 0.125};
  const std::vector<GroupOptions> given{{},           {.lr = 1.0},      {.weight_decay = 0.0},
                                        {.beta1 = 0}, {.beta2 = 0.375}, {.eps = 2.0}};
  const auto constants = make_step_constants(config, given, /*lr=*/0.25, /*grad_multiplier=*/4.0);
  const std::vector<std::array<float, 5>> expected{
      // lr, weight decay, betas, eps
      {0.25f, 0.125f, 0.75f, 0.875f, 0.25f}, {0.5f, 0.125f, 0.75f, 0.875f, 0.25f},
      {0.25f, 0.0f, 0.75f, 0.875f, 0.25f},   {0.25f, 0.125f, 0.0f, 0.875f, 0.25f},
      {0.25f, 0.125f, 0.75f, 0.375f, 0.25f}, {0.25f, 0.125f, 0.75f, 0.875f, 2.0f}};
  for (std::uint32_t group = 0; group < given.size(); ++group) {
    const kernels::AdamStep step = make_update_step(constants, group, 1).constants;
    EXPECT_EQ(
        (std::array{step.learning_rate, step.weight_decay, step.beta1, step.beta2, step.epsilon}),
        expected[group])
        << group;
    EXPECT_EQ(step.grad_multiplier, 4.0f);
  }
}

TEST(ParameterGroups, AreRefusedWithTheirFault) {
  const std::vector<ParameterSpec> parameters{{.name = "a", .shape = {1}},
                                              {.name = "b", .shape = {1}, .group = 2}};
  const auto message = [&](const std::vector<GroupOptions>& given, double lr = 1e-3) {
    const auto checked = check_groups(parameters, given, {.lr = lr});
    EXPECT_FALSE(checked.has_value());
    if (checked.has_value()) return std::string();
    EXPECT_EQ(checked.error().code, ErrorCode::Invalid);
    return checked.error().message;
  };
  EXPECT_EQ(message({{}, {}}),
            "groups: got group 2 of parameter \"b\", allowed 0 to 2 exclusive; give the engine "
            "options of each group");
  EXPECT_EQ(message({{}, {.lr = -1.0}, {}}), "groups[1].lr: got -1, allowed 0 and more");
  EXPECT_EQ(message({{}, {}, {.beta2 = 1.0}}), "groups[2].beta2: got 1, allowed 0 to 1 exclusive");
  EXPECT_EQ(message({{.eps = std::numeric_limits<double>::quiet_NaN()}, {}, {}}),
            "groups[0].eps: got nan, allowed 0 and more");
  EXPECT_NE(message({{.lr = 1.0}, {}, {}}, 0.0).find("optimizer.params.lr is 0"),
            std::string::npos);
  EXPECT_TRUE(check_groups(parameters, std::vector<GroupOptions>(3), {}).has_value());
}

}  // namespace
}  // namespace artesian::zero3
