// Adam's formula for one element on the device, with the same operations in the same order as
// adam.h.
#pragma once

#include <cstddef>

#include "kernels/adam.h"
#include "kernels/element.cuh"

namespace artesian::kernels::cuda {

constexpr std::size_t pieces_max = 32;  // limited by CUDA, which allows arguments of 4 KiB

struct AdamPieces {
  AdamPiece at[pieces_max];
};

/// True if all arrays may be read and written four elements at a time.
inline bool all_aligned(const AdamArrays& arrays) {
  const auto aligned = [](const void* address, DType dtype) {
    return reinterpret_cast<std::uintptr_t>(address) % (4 * dtype_size(dtype)) == 0;
  };
  return aligned_for_four(arrays.param) && aligned_for_four(arrays.master_low) &&
         aligned_for_four(arrays.exp_avg) && aligned_for_four(arrays.exp_avg_sq) &&
         aligned(arrays.grad, arrays.grad_dtype) &&
         aligned(arrays.param_out, arrays.param_out_dtype);
}

/// The constants of a step and the values derived from them, rounded as adam_step_naive rounds
/// them.
struct AdamConstants {
  AdamStep step;
  float one_minus_beta1;
  float one_minus_beta2;
  float decoupled_decay;
};

inline AdamConstants make_adam_constants(const AdamStep& step) {
  return {step, 1.0f - step.beta1, 1.0f - step.beta2, step.learning_rate * step.weight_decay};
}

/// Updates parameter p and moments m and v in place from a gradient.
__device__ inline void adam_element(float& p, float& m, float& v, float grad,
                                    const AdamConstants& constants) {
  const AdamStep& step = constants.step;
  float g = __fmul_rn(grad, step.grad_multiplier);
  if (step.mode == AdamMode::L2) g = __fadd_rn(g, __fmul_rn(step.weight_decay, p));
  m = __fadd_rn(__fmul_rn(step.beta1, m), __fmul_rn(constants.one_minus_beta1, g));
  v = __fadd_rn(__fmul_rn(step.beta2, v), __fmul_rn(__fmul_rn(constants.one_minus_beta2, g), g));
  if (step.mode == AdamMode::AdamW) p = __fsub_rn(p, __fmul_rn(constants.decoupled_decay, p));
  const float denominator =
      __fadd_rn(__fmul_rn(__fsqrt_rn(v), step.denominator_multiplier), step.epsilon);
  p = __fsub_rn(p, __fmul_rn(step.step_size, __fdiv_rn(m, denominator)));
}

/// As kernels::join_master: returns the weight, and clears the tie bit in `v`.
__device__ inline float join_master(std::uint16_t high, std::uint16_t low, float& v) {
  const unsigned moment = __float_as_uint(v);
  const unsigned upper = high + (moment >> 31);
  const int above = static_cast<std::int16_t>(low);
  v = __uint_as_float(moment & 0x7fffffffu);
  return __uint_as_float((upper << 16) + static_cast<unsigned>(above));
}

/// As kernels::split_master; sets the tie bit in `v`.
__device__ inline void split_master(float master, std::uint16_t& high, std::uint16_t& low,
                                    float& v) {
  const unsigned bits = __float_as_uint(master);
  const unsigned rounded_down = (bits & 0x1ffffu) == 0x8000u ? 0x80000000u : 0u;
  v = __uint_as_float((__float_as_uint(v) & 0x7fffffffu) | rounded_down);
  high = round_to<DType::BFloat16>(master);
  low = static_cast<std::uint16_t>(bits);
}

}  // namespace artesian::kernels::cuda
