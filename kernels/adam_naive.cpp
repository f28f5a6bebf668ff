// Adam one element at a time, exactly by the formula in adam.h.
#include <cmath>

#include "kernels/adam.h"
#include "kernels/element.h"
#include "kernels/split_master.h"

namespace artesian::kernels {

namespace {

struct Weight {
  float master;
  float exp_avg_sq;
};

Weight load_weight(const AdamArrays& arrays, std::uint64_t i) noexcept {
  if (arrays.master_low == nullptr) return {arrays.param[i], arrays.exp_avg_sq[i]};
  const auto* high = static_cast<const std::uint16_t*>(arrays.param_out);
  const auto joined = join_master({high[i], arrays.master_low[i], arrays.exp_avg_sq[i]});
  return {joined.master, joined.exp_avg_sq};
}

void store_weight(const AdamArrays& arrays, std::uint64_t i, const Weight& weight) noexcept {
  if (arrays.master_low == nullptr) {
    arrays.param[i] = weight.master;
    arrays.exp_avg_sq[i] = weight.exp_avg_sq;
    if (arrays.param_out == nullptr) return;
    store_element(arrays.param_out, arrays.param_out_dtype, i, weight.master);
    return;
  }
  const SplitMaster split = split_master(weight.master, weight.exp_avg_sq);
  static_cast<std::uint16_t*>(arrays.param_out)[i] = split.high;
  arrays.master_low[i] = split.low;
  arrays.exp_avg_sq[i] = split.exp_avg_sq;
}

}  // namespace

void adam_step_naive(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) noexcept {
  const float one_minus_beta1 = 1.0f - step.beta1;
  const float one_minus_beta2 = 1.0f - step.beta2;
  const float decoupled_decay = step.learning_rate * step.weight_decay;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto [p, v] = load_weight(arrays, i);
    float g = load_element(arrays.grad, arrays.grad_dtype, i) * step.grad_multiplier;
    if (step.mode == AdamMode::L2) g = g + step.weight_decay * p;
    const float m = step.beta1 * arrays.exp_avg[i] + one_minus_beta1 * g;
    v = step.beta2 * v + (one_minus_beta2 * g) * g;
    if (step.mode == AdamMode::AdamW) p = p - decoupled_decay * p;
    const float denominator = std::sqrt(v) * step.denominator_multiplier + step.epsilon;
    p = p - step.step_size * (m / denominator);
    arrays.exp_avg[i] = m;
    store_weight(arrays, i, {p, v});
  }
}

}  // namespace artesian::kernels
