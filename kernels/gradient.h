// Gradient kernels on the CPU: accumulation in the accumulation type; the squared norm and the
// check for infinities and NaNs in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

enum class Accumulate : std::uint8_t { Set, Add };

/// Adds one micro-batch's weight gradient to the accumulator, element by element:
///   g = round_to(grad, grad_dtype);  Set: acc = round_to(g, acc_dtype)
///   Add: acc = round_to(float(acc) + float(g), acc_dtype)
/// Shape: acc: [n] of acc_dtype; grad: [n] fp32; any n; they must not overlap. Returns whether
/// every new acc is finite.
bool accumulate_gradient(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                         std::uint64_t count, Accumulate how) noexcept;

/// A stretch of a gradient, and the accumulator that it joins.
struct GradientPiece {
  void* acc = nullptr;
  const void* grad = nullptr;
  std::uint64_t count = 0;  // elements
  Accumulate how = Accumulate::Add;
};

struct GradientDtypes {
  DType acc = DType::Float32;
  DType grad = DType::Float32;     // fp32, or `rounded`
  DType rounded = DType::Float32;  // what an element is rounded to before it is added
};

/// accumulate_gradient of a piece, whatever its dtype.
void accumulate_piece(const GradientPiece& piece, const GradientDtypes& dtypes) noexcept;

/// The naive version, which equals accumulate_gradient bit for bit (except which NaN a sum of NaNs
/// gives).
bool accumulate_gradient_naive(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                               std::uint64_t count, Accumulate how) noexcept;

/// Elements of a unit's image that go into one partial sum of the norm.
constexpr std::uint64_t norm_leaf = 2048;

/// Sums of squares, leaf by leaf: leaf_sums[k] is the sum over elements [k * norm_leaf, (k + 1) *
/// norm_leaf), in fp64. 16 virtual lanes (element i goes to lane i mod 16) are each summed in order
/// as square(double(x)), then lane 0 + lane 1 + ... + 15. The same bits on every dispatch target. A
/// sum is finite only if all of its elements are: the squares of norm_leaf finite floats add up to
/// less than 2^267, which cannot overflow fp64. A NaN sum is the canonical NaN. Shape: data: [n] of
/// dtype, aligned to its elements only; leaf_sums: [n / norm_leaf, rounded up].
void sum_squares(const void* data, DType dtype, std::uint64_t count, double* leaf_sums) noexcept;

/// The naive version that sum_squares equals bit for bit.
void sum_squares_naive(const void* data, DType dtype, std::uint64_t count,
                       double* leaf_sums) noexcept;

}  // namespace artesian::kernels
