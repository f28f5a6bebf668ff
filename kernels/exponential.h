// exp(x) for x <= 0 in fp32, defined by its sequence of operations, so that every instruction set
// and the GPU give the same bits: n = round(x / ln 2), r = x - n ln 2 in two parts, a polynomial of
// degree 7 (Cephes' expf) and 2^n, with separate multiplications and additions. Within 2 units in
// the last place. Below `lowest` the result is 0, so there are no subnormals. A NaN gives a NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace artesian::kernels {

struct Exponential {
  static constexpr float lowest = -87.0f;
  static constexpr float log2_e = 1.44269504f;
  static constexpr float rounder = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer
  // has few bits, so that its product with n is exact
  static constexpr float ln2_high = 0.693359375f;
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float coefficients[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                           4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
};

/// The naive version, also used for scalars.
inline float exponential(float x) noexcept {
  using E = Exponential;
  if (std::isnan(x)) return x;
  if (x < E::lowest) return 0.0f;
  const float n = (x * E::log2_e + E::rounder) - E::rounder;
  const float r = (x - n * E::ln2_high) - n * E::ln2_low;
  float p = E::coefficients[0];
  for (int k = 1; k < 6; ++k) p = p * r + E::coefficients[k];
  const float y = (p * (r * r) + r) + 1.0f;
  return y * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

/// 1 / (1 + exp(-x)), computed from the exponential of -|x|.
inline float sigmoid(float x) noexcept {
  const float e = exponential(-std::fabs(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

}  // namespace artesian::kernels
