// Root mean square normalisation of rows, and its gradients, each in one pass over memory; the
// weight's gradient is summed over 64 rows at a time.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// Rows and the weight that multiplies them.
struct RmsNormRows {
  const void* input = nullptr;   // [rows, width], contiguous
  const void* weight = nullptr;  // [width], of the same dtype
  DType dtype = DType::Float32;
  std::uint64_t rows = 0;
  std::uint64_t width = 0;  // > 0
  float epsilon = 0.0f;     // > 0
};

/// Inputs and outputs of the backward pass.
struct RmsNormGradient {
  const float* inverses = nullptr;  // [rows], from rms_norm()
  const void* outer = nullptr;      // [rows, width], of the rows' dtype: the output's gradient
  void* input = nullptr;            // likewise, output
  float* weight = nullptr;          // [groups_of(rows), width], output; null if not wanted
};

/// Virtual lanes of a sum along a row (kernels/lanes.h).
constexpr int rms_norm_lanes = 128;

/// Rows that are added up, in order, into one row of sums.
constexpr std::uint64_t rows_per_group = 64;

constexpr std::uint64_t groups_of(std::uint64_t rows) noexcept {
  return rows / rows_per_group + (rows % rows_per_group != 0 ? 1 : 0);
}

/// Computes for each row x, in fp32, with each operation rounded on its own and sums by lanes:
///   inverse = 1 / sqrt(sum of x^2 / width + epsilon)
///   output = round_to(round_to(x * inverse) * weight)
/// A row has the same bits on every instruction set, on the GPU, and beside any other rows. Shape:
/// output: [rows, width], contiguous; inverses: [rows]; aligned to elements only.
void rms_norm(const RmsNormRows& rows, void* output, float* inverses) noexcept;

/// Computes for each row, in fp32, each operation rounded on its own, with q = x * inverse:
///   along = sum of (outer * weight) * q, by lanes, / width
///   input' = round_to((outer * weight - q * along) * inverse)
/// and for each group of rows the sum of outer * q, starting from 0, row by row. The groups depend
/// only on the number of rows. A call may be split at group boundaries.
void rms_norm_gradient(const RmsNormRows& rows, const RmsNormGradient& gradient) noexcept;

/// Adds up rows_per_group rows at a time, starting from 0, in order. Repeating this until one row
/// is left gives a sum whose order depends only on the number of rows. Shape: source: [rows,
/// width]; target: [groups_of(rows), width]; they must not overlap.
void sum_groups(const float* source, std::uint64_t rows, std::uint64_t width,
                float* target) noexcept;

/// The naive versions, which equal the functions above bit for bit (except which NaN).
void rms_norm_naive(const RmsNormRows& rows, void* output, float* inverses) noexcept;
void rms_norm_gradient_naive(const RmsNormRows& rows, const RmsNormGradient& gradient) noexcept;
void sum_groups_naive(const float* source, std::uint64_t rows, std::uint64_t width,
                      float* target) noexcept;

}  // namespace artesian::kernels
