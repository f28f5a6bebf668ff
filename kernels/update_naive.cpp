// The rules one element at a time, exactly by the formulas in update.h.
#include <cmath>

#include "kernels/element.h"
#include "kernels/split_master.h"
#include "kernels/update.h"

namespace artesian::kernels {
namespace {

struct Element {
  float p;
  float m;
  float v;
};

Element load(const AdamArrays& arrays, std::uint64_t i) noexcept {
  Element element{0.0f, arrays.exp_avg != nullptr ? arrays.exp_avg[i] : 0.0f,
                  arrays.exp_avg_sq != nullptr ? arrays.exp_avg_sq[i] : 0.0f};
  if (arrays.master_low == nullptr) {
    element.p = arrays.param[i];
    return element;
  }
  const auto* high = static_cast<const std::uint16_t*>(arrays.param_out);
  const auto joined = join_master({high[i], arrays.master_low[i], element.v});
  element.p = joined.master;
  element.v = joined.exp_avg_sq;
  return element;
}

void store(const AdamArrays& arrays, std::uint64_t i, Element element) noexcept {
  if (arrays.exp_avg != nullptr) arrays.exp_avg[i] = element.m;
  const bool out = arrays.param_out != nullptr && arrays.param_out != arrays.param;
  if (arrays.exp_avg_sq == nullptr && out && arrays.param_out_dtype == DType::BFloat16) {
    element.p = settle_tie(element.p);
  }
  if (arrays.master_low == nullptr) {
    arrays.param[i] = element.p;
    if (arrays.exp_avg_sq != nullptr) arrays.exp_avg_sq[i] = element.v;
    if (out) store_element(arrays.param_out, arrays.param_out_dtype, i, element.p);
    return;
  }
  const SplitMaster split = split_master(element.p, element.v);
  static_cast<std::uint16_t*>(arrays.param_out)[i] = split.high;
  arrays.master_low[i] = split.low;
  if (arrays.exp_avg_sq != nullptr) arrays.exp_avg_sq[i] = split.exp_avg_sq;
}

/// The new m and v of an element, and its weight's change in units of the learning rate.
float step_of(const UpdateStep& step, bool has_average, float g, float& m, float& v) noexcept {
  const AdamStep& c = step.constants;
  switch (step.rule) {
    case Rule::Sgd:
      m = c.beta1 * m + step.grad_share * g;
      return step.nesterov ? g + c.beta1 * m : m;
    case Rule::Adagrad: v = v + g * g; return g / (std::sqrt(v) + c.epsilon);
    case Rule::RmsProp: {
      v = c.beta2 * v + ((1.0f - c.beta2) * g) * g;
      const float u = g / (std::sqrt(v) + c.epsilon);
      if (!has_average) return u;
      m = c.beta1 * m + u;
      return m;
    }
    case Rule::Lion: {
      const float sum = c.beta1 * m + (1.0f - c.beta1) * g;
      m = c.beta2 * m + (1.0f - c.beta2) * g;
      return sum > 0.0f ? 1.0f : sum < 0.0f ? -1.0f : 0.0f;
    }
    case Rule::Lamb:
      m = c.beta1 * m + (1.0f - c.beta1) * g;
      v = c.beta2 * v + ((1.0f - c.beta2) * g) * g;
      return m / (std::sqrt(v) + c.epsilon);
    case Rule::Muon: return g;
    case Rule::Adam: break;
  }
  return 0.0f;
}

}  // namespace

void update_naive(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) noexcept {
  if (step.rule == Rule::Adam) return adam_step_naive(arrays, count, step.constants);
  const AdamStep& c = step.constants;
  const float decoupled_decay = c.learning_rate * c.weight_decay;
  for (std::uint64_t i = 0; i < count; ++i) {
    Element e = load(arrays, i);
    float g = load_element(arrays.grad, arrays.grad_dtype, i) * c.grad_multiplier;
    const bool decoupled = step.rule == Rule::Lion || step.rule == Rule::Muon;
    const bool decays_grad = !decoupled && step.rule != Rule::Lamb;
    if (decays_grad) g = g + c.weight_decay * e.p;
    float u = step_of(step, arrays.exp_avg != nullptr, g, e.m, e.v);
    if (step.rule == Rule::Lamb) u = u + c.weight_decay * e.p;
    if (decoupled) e.p = e.p - decoupled_decay * e.p;
    e.p = e.p - c.learning_rate * u;
    store(arrays, i, e);
  }
}

void muon_direction_naive(const void* grad, DType grad_dtype, std::uint64_t count,
                          const UpdateStep& step, float* average, float* direction) noexcept {
  const AdamStep& c = step.constants;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float g = load_element(grad, grad_dtype, i) * c.grad_multiplier;
    const float m = average[i] + (1.0f - c.beta1) * (g - average[i]);
    average[i] = m;
    direction[i] = step.nesterov ? g + c.beta1 * (m - g) : m;
  }
}

void lamb_direction_naive(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step,
                          float* weights, float* directions) noexcept {
  const AdamStep& c = step.constants;
  for (std::uint64_t i = 0; i < count; ++i) {
    Element e = load(arrays, i);
    const float g = load_element(arrays.grad, arrays.grad_dtype, i) * c.grad_multiplier;
    weights[i] = e.p;
    directions[i] = step_of(step, true, g, e.m, e.v) + c.weight_decay * e.p;
  }
}

}  // namespace artesian::kernels
