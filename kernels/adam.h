// Optimizer kernels on the CPU: one pass reads the gradient and the state, and writes the state and
// the 16-bit parameter. SIMD with run-time dispatch (Highway). Multiply and add stay separate
// operations and no reciprocal approximation is used, so every dispatch target gives the same bits
// as the naive version.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// AdamW: decoupled weight decay. L2: weight decay added to the gradient.
enum class AdamMode : std::uint8_t { AdamW, L2 };

/// The constants of one step, fixed before the step begins.
struct AdamStep {
  AdamMode mode = AdamMode::AdamW;
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  float grad_multiplier = 1.0f;  // 1 / (loss scale * clip factor); multiplies the gradient first
  float step_size = 0.0f;        // learning_rate / (1 - beta1^t)
  float denominator_multiplier = 1.0f;  // 1 / sqrt(1 - beta2^t)

  bool operator==(const AdamStep&) const = default;
};

/// Computes the two derived constants for step t (from 1), with beta^t by squaring in double. The
/// betas are the floats that adam_step uses, so that the bias of a constant gradient is corrected
/// exactly. Without bias correction the constants are learning_rate and 1.
AdamStep make_adam_step(AdamStep constants, std::uint64_t step, bool bias_correction) noexcept;

/// The arrays of one slice, each [count], aligned to their elements only. `grad` is of
/// `grad_dtype`; `param_out`, if not null, receives the new parameter rounded to `param_out_dtype`.
/// The arrays must not overlap, except that param_out may be param.
struct AdamArrays {
  float* param = nullptr;  // master weights, updated in place
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const void* grad = nullptr;
  DType grad_dtype = DType::Float32;
  void* param_out = nullptr;
  DType param_out_dtype = DType::Float16;
  /// If not null, the master weights are split (kernels/split_master.h): `param` is not used,
  /// `param_out` holds their upper halves (bf16), updated in place, and the sign of `exp_avg_sq`
  /// holds the tie bit.
  std::uint16_t* master_low = nullptr;
};

/// Arrays of one slice and their length.
struct AdamPiece {
  AdamArrays arrays;
  std::uint64_t count = 0;
};

/// Adam on `count` elements, in place. In fp32, in this order, each operation rounded on its own:
///   g = grad * grad_multiplier;   L2: g = g + weight_decay * p
///   m = beta1 * m + (1 - beta1) * g;   v = beta2 * v + ((1 - beta2) * g) * g
///   AdamW: p = p - (learning_rate * weight_decay) * p
///   p = p - step_size * (m / (sqrt(v) * denominator_multiplier + epsilon))
/// The bits of an element do not depend on count or on its place in the slice, so any cut into
/// slices gives the same result; count may be 0. Infinities and NaNs follow IEEE 754 (which NaN
/// results from NaNs is not specified); the caller keeps them out (sum_squares). Split master
/// weights give the same bits as whole ones, except for NaNs. Thread: any, for disjoint slices.
/// Source: Loshchilov & Hutter 2019, Algorithm 2.
void adam_step(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) noexcept;

/// The naive version that adam_step equals bit for bit; also the reference for other devices.
void adam_step_naive(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step) noexcept;

}  // namespace artesian::kernels
