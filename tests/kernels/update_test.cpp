// Proves the rules right twice: the naive version against hand-computed steps and a run in double
// precision, and every SIMD target against the naive version bit for bit, in every form of master
// weights, on values, lengths and alignments that find mistakes.
#include "kernels/update.h"

#include <cstring>

#include "kernels/split_master.h"
#include "tests/kernels/update_case.h"

namespace artesian::kernels {
namespace {

class UpdateOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(UpdateOnTarget);

TEST_P(UpdateOnTarget, EqualsTheNaiveVersionBitForBit) {
  for (const UpdateStep& step : update_steps_to_try()) {
    for_update_forms([&](DType grad_dtype, DType out_dtype, bool split) {
      for (const std::uint64_t count : counts) {
        UpdateCase fast(step, count, grad_dtype, out_dtype, split);
        UpdateCase naive = fast;
        update(fast.arrays(), count, step);
        update_naive(naive.arrays(), count, step);
        fast.expect_same(naive);
        if (HasFailure()) return;
      }
    });
    if (HasFailure()) FAIL() << "rule " << static_cast<int>(step.rule);
  }
}

TEST_P(UpdateOnTarget, SplitWeightsHaveTheBitsOfWholeOnes) {
  constexpr std::uint64_t count = 4099;
  for (const UpdateStep& step : update_steps_to_try()) {
    UpdateCase split(step, count, DType::BFloat16, DType::BFloat16, true);
    UpdateCase whole(step, count, DType::BFloat16, DType::BFloat16, false);
    whole.take_weights_of(split);
    for (int steps = 0; steps < 3; ++steps) {
      update(split.arrays(), count, step);
      update(whole.arrays(), count, step);
    }
    split.expect_same_weights(whole);
    if (HasFailure()) FAIL() << "rule " << static_cast<int>(step.rule);
  }
}

TEST(SettleTie, MovesOnlyWhatLiesHalfWayAndRoundsDown) {
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 7) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto bits = upper << 16 | lower;
      const auto value = std::bit_cast<float>(bits);
      const auto settled = std::bit_cast<std::uint32_t>(settle_tie(value));
      const bool moves = lower == 0x8000 && upper % 2 == 0;
      ASSERT_EQ(settled, moves ? bits - 1 : bits) << bits;
      if (std::isnan(value)) continue;
      ASSERT_EQ(float_to_bf16(std::bit_cast<float>(settled)), float_to_bf16(value)) << bits;
      const SplitMaster split = split_master(std::bit_cast<float>(settled), 0.0f);
      ASSERT_EQ(split.exp_avg_sq, 0.0f) << bits;  // it needs no bit
      ASSERT_FALSE(std::signbit(split.exp_avg_sq)) << bits;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(join_master(split).master), settled) << bits;
    }
  }
}

struct One {
  float p = 1.0f, m = 0.0f, v = 0.0f;
};

/// One step of a rule with gradient 0.5, naively.
One step_once(UpdateStep step, One at, bool average = true) {
  const float grad = 0.5f;
  AdamArrays arrays{.param = &at.p, .exp_avg = average ? &at.m : nullptr, .grad = &grad};
  if (has_squares(step.rule)) arrays.exp_avg_sq = &at.v;
  update_naive(arrays, 1, step);
  return at;
}

TEST(Update, StepsByHand) {
  UpdateStep sgd{.rule = Rule::Sgd, .grad_share = 0.5f};
  sgd.constants = {.learning_rate = 0.1f, .beta1 = 0.9f, .weight_decay = 0.2f};
  One at = step_once(sgd, {.p = 1.0f, .m = 1.0f});  // g = 0.7, m = 0.9 + 0.35
  EXPECT_FLOAT_EQ(at.m, 1.25f);
  EXPECT_FLOAT_EQ(at.p, 0.875f);
  sgd.nesterov = true;  // g + 0.9 * 1.25 = 1.825
  EXPECT_FLOAT_EQ(step_once(sgd, {.p = 1.0f, .m = 1.0f}).p, 0.8175f);

  UpdateStep adagrad{.rule = Rule::Adagrad};
  adagrad.constants = {.learning_rate = 0.1f, .epsilon = 0.25f};
  at = step_once(adagrad, {.v = 0.3125f}, false);  // v = 0.5625, u = 0.5 / 1
  EXPECT_FLOAT_EQ(at.v, 0.5625f);
  EXPECT_FLOAT_EQ(at.p, 0.95f);

  UpdateStep rms{.rule = Rule::RmsProp};
  rms.constants = {.learning_rate = 0.1f, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 0.5f};
  at = step_once(rms, {.v = 0.25f}, false);  // v = 0.1875 + 0.0625, u = 0.5 / 1
  EXPECT_FLOAT_EQ(at.v, 0.25f);
  EXPECT_FLOAT_EQ(at.p, 0.95f);
  at = step_once(rms, {.m = 1.0f, .v = 0.25f});  // m = 0.5 + 0.5
  EXPECT_FLOAT_EQ(at.m, 1.0f);
  EXPECT_FLOAT_EQ(at.p, 0.9f);

  UpdateStep lion{.rule = Rule::Lion};
  lion.constants = {.learning_rate = 0.1f, .beta1 = 0.5f, .beta2 = 0.75f, .weight_decay = 1.0f};
  at = step_once(lion, {.m = -1.0f});  // c = -0.25, m = -0.75 + 0.125; 1 - 0.1 + 0.1
  EXPECT_FLOAT_EQ(at.m, -0.625f);
  EXPECT_FLOAT_EQ(at.p, 1.0f);
  at = step_once(lion, {.m = -0.5f});  // c = 0: decay alone
  EXPECT_FLOAT_EQ(at.p, 0.9f);

  UpdateStep lamb{.rule = Rule::Lamb};
  lamb.constants = {
      .learning_rate = 0.1f, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 0.5f, .weight_decay = 0.25f};
  at = step_once(lamb, {.m = 1.5f, .v = 0.25f});  // m = 0.75 + 0.25, v = 0.25, u = 1 / 1 + 0.25
  EXPECT_FLOAT_EQ(at.m, 1.0f);
  EXPECT_FLOAT_EQ(at.v, 0.25f);
  EXPECT_FLOAT_EQ(at.p, 0.875f);
}

TEST(Update, OfMuonByHand) {
  UpdateStep muon{.rule = Rule::Muon, .nesterov = true};
  muon.constants = {.learning_rate = 0.1f, .beta1 = 0.75f, .weight_decay = 1.0f};
  const float grad = 1.0f;
  float average = 0.0f, direction = 0.0f;
  muon_direction_naive(&grad, DType::Float32, 1, muon, &average, &direction);
  EXPECT_FLOAT_EQ(average, 0.25f);
  EXPECT_FLOAT_EQ(direction, 0.4375f);  // 1 + 0.75 * (0.25 - 1)
  One at;                               // 1 - 0.1 * 1 - 0.1 * 0.5
  EXPECT_FLOAT_EQ(step_once(muon, at, false).p, 0.85f);
}

TEST_P(UpdateOnTarget, TheDirectionOfLambIsWhatItWouldStepBy) {
  const AdamStep constants{.learning_rate = 1.0f,
                           .beta1 = 0.9f,
                           .beta2 = 0.99f,
                           .weight_decay = 0.1f,
                           .grad_multiplier = 0.5f};
  const UpdateStep step{.rule = Rule::Lamb, .constants = constants};
  for_update_forms([&](DType grad_dtype, DType out_dtype, bool split) {
    for (const std::uint64_t count : counts) {
      UpdateCase given(step, count, grad_dtype, out_dtype, split);
      const UpdateCase before = given;
      std::vector<float> weights(count + 1, 7.0f), directions(count + 1, 7.0f);
      auto naive_weights = weights, naive_directions = directions;
      lamb_direction(given.arrays(), count, step, weights.data(), directions.data());
      lamb_direction_naive(given.arrays(), count, step, naive_weights.data(),
                           naive_directions.data());
      given.expect_same(before);
      for (std::uint64_t i = 0; i <= count; ++i) {
        ASSERT_TRUE(same_value(weights[i], naive_weights[i])) << i;
        ASSERT_TRUE(same_value(directions[i], naive_directions[i])) << i;
      }
      if (split) continue;
      update(given.arrays(), count, step);
      const float* after = given.arrays().param;
      for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same_value(after[i], weights[i] - directions[i])) << i;
      }
    }
  });
}

TEST_P(UpdateOnTarget, TheDirectionOfMuonEqualsTheNaiveVersion) {
  UpdateStep step{.rule = Rule::Muon};
  step.constants = {.beta1 = 0.95f, .grad_multiplier = 0.25f};
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t count : counts) {
      for (const bool nesterov : {false, true}) {
        step.nesterov = nesterov;
        const auto grad = array_of(mixed_values(count, 4), dtype, 0);
        auto average = mixed_values(count + 1, 2), naive_average = average;
        std::vector<float> direction(count + 1, 7.0f), naive_direction = direction;
        muon_direction(grad.data(), dtype, count, step, average.data(), direction.data());
        muon_direction_naive(grad.data(), dtype, count, step, naive_average.data(),
                             naive_direction.data());
        for (std::uint64_t i = 0; i <= count; ++i) {
          ASSERT_TRUE(same_value(average[i], naive_average[i])) << i;
          ASSERT_TRUE(same_value(direction[i], naive_direction[i])) << i;
        }
      }
    }
  }
}

TEST(Update, OfNothingIsNothing) {
  for (const UpdateStep& step : update_steps_to_try()) {
    std::vector<float> zeros(16), grad(16);
    std::vector<float> m(16), v(16);
    AdamArrays arrays{.param = zeros.data(), .exp_avg = m.data(), .grad = grad.data()};
    if (has_squares(step.rule)) arrays.exp_avg_sq = v.data();
    update(arrays, 16, step);
    for (const float value : zeros) EXPECT_EQ(value, 0.0f) << static_cast<int>(step.rule);
  }
}

}  // namespace
}  // namespace artesian::kernels
