// silu(gate) * up, the middle of a gated MLP, in one pass, and its gradients in another, with the
// same roundings as the separate operations that they replace.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// Rows of two matrices, each a separate array or a part of the rows of one array.
struct GatedRows {
  const void* gate = nullptr;  // [rows, width]
  const void* up = nullptr;    // [rows, width]
  DType dtype = DType::Float32;
  std::uint64_t rows = 0;
  std::uint64_t width = 0;
  std::uint64_t stride = 0;  // elements from a row of gate to the next, and of up; >= width
};

/// Inputs and outputs of the backward pass, all with the rows' dtype.
struct SwigluGradient {
  const void* outer = nullptr;  // [rows, width], contiguous: the product's gradient
  void* gate = nullptr;         // [rows, width], with the stride of the rows; output
  void* up = nullptr;           // likewise
};

/// Computes for each element, in fp32, each operation rounded on its own:
///   s = round_to(gate * sigmoid(gate));  product = round_to(s * up)
/// with sigmoid() of exponential.h: the bits are the same on every instruction set and on the GPU,
/// however the elements are divided into rows. A gate of -infinity gives a NaN. Shape: product:
/// [rows, width], contiguous; aligned to elements only; no overlap.
void swiglu(const GatedRows& rows, void* product) noexcept;

/// Computes for each element, in fp32, each operation rounded on its own, with q = sigmoid(gate):
///   up' = round_to(outer * round_to(gate * q))
///   gate' = round_to((round_to(outer * up) * q) * (1 + gate * (1 - q)))
/// Overlap: none.
void swiglu_gradient(const GatedRows& rows, const SwigluGradient& gradient) noexcept;

/// The naive versions, which equal the functions above bit for bit (except which NaN).
void swiglu_naive(const GatedRows& rows, void* product) noexcept;
void swiglu_gradient_naive(const GatedRows& rows, const SwigluGradient& gradient) noexcept;

}  // namespace artesian::kernels
