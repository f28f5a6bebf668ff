// Gradient kernels on the CPU: accumulation in the accumulation type, and norm + inf/nan in one
// pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/dtype.h"

namespace artesian::kernels {

enum class Accumulate : std::uint8_t { Set, Add };

/// One micro-batch's weight gradient joins the accumulator, element by element:
///   g = round_to(grad, grad_dtype);  Set: acc = round_to(g, acc_dtype)
///   Add: acc = round_to(float(acc) + float(g), acc_dtype)
/// Shape: acc: [n] of acc_dtype; grad: [n] fp32; any n; they must not overlap.
/// Returns whether every new acc is finite.
bool accumulate_gradient(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                         std::uint64_t count, Accumulate how) noexcept;

/// The naive version that accumulate_gradient equals bit for bit (a NaN sum of NaNs: any NaN).
bool accumulate_gradient_naive(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                               std::uint64_t count, Accumulate how) noexcept;

/// Elements per partial sum of a norm: partial sums never span two parameters.
constexpr std::uint64_t norm_block = 65536;

struct SumSquares {
  double sum = 0.0;    // of squares, in fp64
  bool finite = true;  // no infinity or NaN among the elements
};

/// The result for a sum. One check finds every infinity and NaN: the sum of norm_block squares of
/// finite floats is below 2^272 and cannot overflow fp64. A NaN becomes the one canonical NaN.
inline SumSquares make_sum_squares(double sum) noexcept {
  if (std::isnan(sum)) return {std::numeric_limits<double>::quiet_NaN(), false};
  return {sum, !std::isinf(sum)};
}

/// Sum of squares of at most `norm_block` elements of `dtype`: 16 virtual lanes (element i goes to
/// lane i mod 16), each summed in order in fp64 as square(double(x)), then lane 0 + lane 1 + ...
/// + 15. The same bits on every dispatch target. The caller adds blocks in order.
/// Shape: data: [n] of dtype, n <= norm_block, aligned to its elements only.
SumSquares sum_squares(const void* data, DType dtype, std::uint64_t count) noexcept;

/// The naive version that sum_squares equals bit for bit.
SumSquares sum_squares_naive(const void* data, DType dtype, std::uint64_t count) noexcept;

}  // namespace artesian::kernels
