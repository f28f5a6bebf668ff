// exponential() and sigmoid() of exponential.h on the device.
#pragma once

#include "kernels/element.cuh"
#include "kernels/exponential.h"

namespace artesian::kernels::cuda {

__device__ inline float exponential_on_device(float x) {
  using E = Exponential;
  if (!(x >= E::lowest)) return x < E::lowest ? 0.0f : x;  // a NaN is returned unchanged
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, E::log2_e), E::rounder), E::rounder);
  const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, E::ln2_high)), __fmul_rn(n, E::ln2_low));
  constexpr float coefficients[] = {E::coefficients[0], E::coefficients[1], E::coefficients[2],
                                    E::coefficients[3], E::coefficients[4], E::coefficients[5]};
  float p = coefficients[0];
#pragma unroll
  for (int k = 1; k < 6; ++k) p = __fadd_rn(__fmul_rn(p, r), coefficients[k]);
  const float y = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
  return __fmul_rn(y, __uint_as_float(static_cast<unsigned>(static_cast<int>(n) + 127) << 23));
}

__device__ inline float sigmoid_on_device(float x) {
  const float e = exponential_on_device(__uint_as_float(__float_as_uint(x) | 0x80000000u));
  return __fdiv_rn(x >= 0.0f ? 1.0f : e, __fadd_rn(1.0f, e));
}

}  // namespace artesian::kernels::cuda
