// One slice's arrays for any rule of kernels/update.h, in any form of master weights, with guard
// elements on both sides, which a step must leave alone.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/split_master.h"
#include "kernels/update.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {

/// Steps of every rule and variant but Adam's.
inline std::vector<UpdateStep> update_steps_to_try() {
  AdamStep common{.learning_rate = 1e-2f,
                  .beta1 = 0.9f,
                  .beta2 = 0.99f,
                  .epsilon = 1e-8f,
                  .weight_decay = 0.1f,
                  .grad_multiplier = 1.0f / 1024};
  std::vector<UpdateStep> steps;
  for (const Rule rule :
       {Rule::Sgd, Rule::Adagrad, Rule::RmsProp, Rule::Lion, Rule::Lamb, Rule::Muon}) {
    steps.push_back({.rule = rule, .constants = common});
  }
  steps.push_back({.rule = Rule::Sgd, .constants = common, .grad_share = 0.75f, .nesterov = true});
  common.beta1 = 0.0f;  // RmsProp without momentum, as UpdateCase has it
  steps.push_back({.rule = Rule::RmsProp, .constants = common});
  return steps;
}

/// Calls `try_form(grad_dtype, out_dtype, split)` with every form of gradients and weights.
template <typename Try>
void for_update_forms(const Try& try_form) {
  constexpr DType dtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};
  for (const DType grad : dtypes) {
    for (const DType out : dtypes) try_form(grad, out, false);
    try_form(grad, DType::BFloat16, true);
  }
}

struct UpdateCase {
  static constexpr std::uint64_t guard = 20;
  std::vector<unsigned char> param, exp_avg, exp_avg_sq, grad, param_out, low;
  UpdateStep step;
  DType grad_dtype, out_dtype;
  bool split;
  std::uint64_t offset;

  UpdateCase(const UpdateStep& how, std::uint64_t count, DType grad_type, DType out_type,
             bool is_split)
      : step(how),
        grad_dtype(grad_type),
        out_dtype(out_type),
        split(is_split),
        offset(count % 4 == 3 ? 0 : count % 4) {
    const std::uint64_t n = count + guard;
    auto squares = mixed_values(n, 3);
    auto masters = mixed_values(n, 1);
    std::vector<std::uint16_t> highs(n), lows(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      squares[i] = std::fabs(squares[i]);
      if (std::isnan(masters[i])) masters[i] = 1.0f;  // whose payload a split does not keep
      const auto upper = static_cast<std::uint32_t>(i * 9973 % 0x7f00);
      if (i % 5 == 0) masters[i] = std::bit_cast<float>(upper << 16 | 0x8000u);  // a tie
      if (!has_squares(step.rule)) masters[i] = settle_tie(masters[i]);
      const auto parts = split_master(masters[i], squares[i]);
      highs[i] = parts.high;
      lows[i] = parts.low;
      if (split) squares[i] = parts.exp_avg_sq;
    }
    param = array_of(masters, DType::Float32, offset);
    exp_avg = array_of(mixed_values(n, 2), DType::Float32, offset);
    exp_avg_sq = array_of(squares, DType::Float32, offset);
    grad = array_of(mixed_values(n, 4), grad_dtype, offset);
    param_out = split ? halves(highs) : array_of(std::vector<float>(n, 7.0f), out_dtype, offset);
    low = halves(lows);
  }

  std::vector<unsigned char> halves(const std::vector<std::uint16_t>& values) const {
    std::vector<unsigned char> bytes((values.size() + offset) * 2, 0x5a);
    std::memcpy(bytes.data() + offset * 2, values.data(), values.size() * 2);
    return bytes;
  }

  bool has_average() const {
    return step.rule != Rule::Adagrad && step.rule != Rule::Muon &&
           (step.rule != Rule::RmsProp || step.constants.beta1 != 0.0f);
  }

  /// The arrays where `at(bytes, element size)` says that each begins.
  template <typename At>
  AdamArrays arrays_by(const At& at) {
    AdamArrays arrays{.grad = at(grad, dtype_size(grad_dtype)),
                      .grad_dtype = grad_dtype,
                      .param_out = at(param_out, dtype_size(out_dtype)),
                      .param_out_dtype = out_dtype};
    if (has_average()) arrays.exp_avg = static_cast<float*>(at(exp_avg, 4));
    if (has_squares(step.rule)) arrays.exp_avg_sq = static_cast<float*>(at(exp_avg_sq, 4));
    if (split) {
      arrays.master_low = static_cast<std::uint16_t*>(at(low, 2));
    } else {
      arrays.param = static_cast<float*>(at(param, 4));
    }
    return arrays;
  }

  AdamArrays arrays() {
    return arrays_by([&](std::vector<unsigned char>& bytes, std::size_t size) -> void* {
      return bytes.data() + offset * size;
    });
  }

  void expect_same(const UpdateCase& other) const {
    EXPECT_TRUE(same_arrays(param, other.param, DType::Float32));
    EXPECT_TRUE(same_arrays(exp_avg, other.exp_avg, DType::Float32));
    EXPECT_TRUE(same_arrays(param_out, other.param_out, out_dtype));
    EXPECT_TRUE(same_arrays(exp_avg_sq, other.exp_avg_sq, DType::Float32));
    if (!split || param_out == other.param_out) {  // of a NaN, any low half
      EXPECT_EQ(low, other.low);
    }
    EXPECT_EQ(grad, other.grad);
  }

  float master(std::uint64_t i) const {
    const auto at = [&](const std::vector<unsigned char>& bytes) {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes.data() + (offset + i) * 2, 2);
      return half;
    };
    const float square =
        has_squares(step.rule) ? load_element(exp_avg_sq.data(), DType::Float32, offset + i) : 0.0f;
    return join_master({at(param_out), at(low), square}).master;
  }

  void take_weights_of(const UpdateCase& from) {
    const std::uint64_t n = param.size() / 4 - offset;
    for (std::uint64_t i = 0; i < n; ++i) {
      store_element(param.data(), DType::Float32, offset + i, from.master(i));
    }
  }

  void expect_same_weights(const UpdateCase& whole) const {
    const std::uint64_t n = param.size() / 4 - offset - guard;
    for (std::uint64_t i = 0; i < n; ++i) {
      const float other = load_element(whole.param.data(), DType::Float32, offset + i);
      ASSERT_TRUE(same_value(master(i), other)) << i << ": " << master(i) << " and " << other;
    }
  }
};

}  // namespace artesian::kernels
