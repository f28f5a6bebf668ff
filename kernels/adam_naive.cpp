// Adam one element at a time, exactly as the formula in adam.h is written.
#include <cmath>

#include "kernels/adam.h"
#include "kernels/element.h"

namespace artesian::kernels {

void adam_step_naive(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) noexcept {
  const float one_minus_beta1 = 1.0f - step.beta1;
  const float one_minus_beta2 = 1.0f - step.beta2;
  const float decoupled_decay = step.learning_rate * step.weight_decay;
  for (std::uint64_t i = 0; i < count; ++i) {
    float p = arrays.param[i];
    float g = load_element(arrays.grad, arrays.grad_dtype, i) * step.grad_multiplier;
    if (step.mode == AdamMode::L2) g = g + step.weight_decay * p;
    const float m = step.beta1 * arrays.exp_avg[i] + one_minus_beta1 * g;
    const float v = step.beta2 * arrays.exp_avg_sq[i] + (one_minus_beta2 * g) * g;
    if (step.mode == AdamMode::AdamW) p = p - decoupled_decay * p;
    const float denominator = std::sqrt(v) * step.denominator_multiplier + step.epsilon;
    p = p - step.step_size * (m / denominator);
    arrays.param[i] = p;
    arrays.exp_avg[i] = m;
    arrays.exp_avg_sq[i] = v;
    if (arrays.param_out != nullptr) {
      store_element(arrays.param_out, arrays.param_out_dtype, i, p);
    }
  }
}

}  // namespace artesian::kernels
