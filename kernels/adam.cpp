// Adam with SIMD: full vectors in one loop, and the tail padded and processed by the same code, so
// that an element's bits do not depend on where slices were cut. See Note [Same bits] in
// simd_inl.h.
#include "kernels/adam.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/simd_inl.h"
#include "kernels/split_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// The form of the new parameter besides the master weight. Split: BFloat16, which is also the
/// master weight's upper half.
enum class Output : std::uint8_t { None, Float32, Float16, BFloat16, Split };

template <Output output>
constexpr DType output_dtype = output == Output::Float16    ? DType::Float16
                               : output == Output::BFloat16 ? DType::BFloat16
                               : output == Output::Split    ? DType::BFloat16
                                                            : DType::Float32;

/// Adam on `count` elements; count is a multiple of the vector length.
template <AdamMode mode, DType grad_dtype, Output output>
HWY_NOINLINE void adam_vectors(const AdamArrays& arrays, std::uint64_t count,
                               const AdamStep& step) {
  const FloatTag d;
  float* HWY_RESTRICT param = arrays.param;
  float* HWY_RESTRICT exp_avg = arrays.exp_avg;
  float* HWY_RESTRICT exp_avg_sq = arrays.exp_avg_sq;
  const auto* HWY_RESTRICT grad = static_cast<const Element<grad_dtype>*>(arrays.grad);
  auto* param_out = static_cast<Element<output_dtype<output>>*>(arrays.param_out);
  std::uint16_t* HWY_RESTRICT low = arrays.master_low;
  const auto grad_multiplier = hn::Set(d, step.grad_multiplier);
  const auto beta1 = hn::Set(d, step.beta1);
  const auto beta2 = hn::Set(d, step.beta2);
  const auto one_minus_beta1 = hn::Set(d, 1.0f - step.beta1);
  const auto one_minus_beta2 = hn::Set(d, 1.0f - step.beta2);
  const auto epsilon = hn::Set(d, step.epsilon);
  const auto decay =
      hn::Set(d, mode == AdamMode::L2 ? step.weight_decay : step.learning_rate * step.weight_decay);
  const auto step_size = hn::Set(d, step.step_size);
  const auto denominator_multiplier = hn::Set(d, step.denominator_multiplier);
  for (std::uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    if constexpr (output != Output::Split) prefetch_beyond(param + i);
    if constexpr (output == Output::Split) prefetch_beyond(low + i);
    prefetch_beyond(exp_avg + i);
    prefetch_beyond(exp_avg_sq + i);
    prefetch_beyond(grad + i);
    if constexpr (output != Output::None) prefetch_beyond(param_out + i);
    auto m = hn::LoadU(d, exp_avg + i);
    auto v = hn::LoadU(d, exp_avg_sq + i);
    FloatVector p;
    if constexpr (output == Output::Split) {
      p = join_split(param_out + i, low + i, v);
    } else {
      p = hn::LoadU(d, param + i);
    }
    auto g = hn::Mul(load<grad_dtype>(d, grad + i), grad_multiplier);
    if constexpr (mode == AdamMode::L2) g = hn::Add(g, hn::Mul(decay, p));
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(one_minus_beta1, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(hn::Mul(one_minus_beta2, g), g));
    if constexpr (mode == AdamMode::AdamW) p = hn::Sub(p, hn::Mul(decay, p));
    const auto denominator = hn::Add(hn::Mul(hn::Sqrt(v), denominator_multiplier), epsilon);
    p = hn::Sub(p, hn::Mul(step_size, hn::Div(m, denominator)));
    hn::StoreU(m, d, exp_avg + i);
    if constexpr (output == Output::Split) {
      store_split(p, v, param_out + i, low + i, exp_avg_sq + i);
      continue;
    }
    hn::StoreU(p, d, param + i);
    hn::StoreU(v, d, exp_avg_sq + i);
    if constexpr (output != Output::None && output != Output::Split) {
      store<output_dtype<output>>(d, p, param_out + i);
    }
  }
}

/// As above, for any count.
template <AdamMode mode, DType grad_dtype, Output output>
void adam_any(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) {
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  const std::uint64_t full = count - count % lanes;
  adam_vectors<mode, grad_dtype, output>(arrays, full, step);
  const std::uint64_t rest = count - full;
  if (rest == 0) return;

  float param[lanes] = {}, exp_avg[lanes] = {}, exp_avg_sq[lanes] = {};
  Element<grad_dtype> grad[lanes] = {};
  Element<output_dtype<output>> param_out[lanes] = {};
  std::uint16_t master_low[lanes] = {};
  constexpr bool split = output == Output::Split;
  const auto* grad_rest = static_cast<const Element<grad_dtype>*>(arrays.grad) + full;
  if constexpr (split) {
    const auto* high = static_cast<const std::uint16_t*>(arrays.param_out) + full;
    std::memcpy(param_out, high, rest * sizeof(param_out[0]));
    std::memcpy(master_low, arrays.master_low + full, rest * sizeof(master_low[0]));
  } else {
    std::memcpy(param, arrays.param + full, rest * sizeof(float));
  }
  std::memcpy(exp_avg, arrays.exp_avg + full, rest * sizeof(float));
  std::memcpy(exp_avg_sq, arrays.exp_avg_sq + full, rest * sizeof(float));
  std::memcpy(grad, grad_rest, rest * sizeof(grad[0]));
  const AdamArrays padded = {.param = param,
                             .exp_avg = exp_avg,
                             .exp_avg_sq = exp_avg_sq,
                             .grad = grad,
                             .grad_dtype = grad_dtype,
                             .param_out = param_out,
                             .param_out_dtype = arrays.param_out_dtype,
                             .master_low = master_low};
  adam_vectors<mode, grad_dtype, output>(padded, lanes, step);
  if constexpr (split) {
    std::memcpy(arrays.master_low + full, master_low, rest * sizeof(master_low[0]));
  } else {
    std::memcpy(arrays.param + full, param, rest * sizeof(float));
  }
  std::memcpy(arrays.exp_avg + full, exp_avg, rest * sizeof(float));
  std::memcpy(arrays.exp_avg_sq + full, exp_avg_sq, rest * sizeof(float));
  if constexpr (output != Output::None) {
    auto* out_rest = static_cast<Element<output_dtype<output>>*>(arrays.param_out) + full;
    std::memcpy(out_rest, param_out, rest * sizeof(param_out[0]));
  }
}

template <AdamMode mode, DType grad_dtype>
void adam_by_output(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) {
  if (arrays.master_low != nullptr) {
    return adam_any<mode, grad_dtype, Output::Split>(arrays, count, step);
  }
  if (arrays.param_out == nullptr || arrays.param_out == arrays.param) {
    return adam_any<mode, grad_dtype, Output::None>(arrays, count, step);
  }
  switch (arrays.param_out_dtype) {
    case DType::Float32: return adam_any<mode, grad_dtype, Output::Float32>(arrays, count, step);
    case DType::Float16: return adam_any<mode, grad_dtype, Output::Float16>(arrays, count, step);
    case DType::BFloat16: return adam_any<mode, grad_dtype, Output::BFloat16>(arrays, count, step);
  }
}

template <AdamMode mode>
void adam_by_grad(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) {
  switch (arrays.grad_dtype) {
    case DType::Float32: return adam_by_output<mode, DType::Float32>(arrays, count, step);
    case DType::Float16: return adam_by_output<mode, DType::Float16>(arrays, count, step);
    case DType::BFloat16: return adam_by_output<mode, DType::BFloat16>(arrays, count, step);
  }
}

void adam_on_target(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) {
  if (step.mode == AdamMode::L2) {
    adam_by_grad<AdamMode::L2>(arrays, count, step);
  } else {
    adam_by_grad<AdamMode::AdamW>(arrays, count, step);
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace artesian::kernels {
namespace {

HWY_EXPORT(adam_on_target);

/// base^exponent by squaring, which gives the same bits on every machine; std::pow does not
/// guarantee that.
double power(double base, std::uint64_t exponent) noexcept {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1u) != 0) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

AdamStep make_adam_step(AdamStep constants, std::uint64_t step, bool bias_correction) noexcept {
  ARTESIAN_CHECK(step >= 1, step);
  const auto learning_rate = static_cast<double>(constants.learning_rate);
  if (!bias_correction) {
    constants.step_size = constants.learning_rate;
    constants.denominator_multiplier = 1.0f;
    return constants;
  }
  const double correction1 = 1.0 - power(static_cast<double>(constants.beta1), step);
  const double correction2 = 1.0 - power(static_cast<double>(constants.beta2), step);
  constants.step_size = static_cast<float>(learning_rate / correction1);
  constants.denominator_multiplier = static_cast<float>(1.0 / std::sqrt(correction2));
  return constants;
}

void adam_step(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) noexcept {
  HWY_DYNAMIC_DISPATCH(adam_on_target)(arrays, count, step);
}

}  // namespace artesian::kernels
#endif
