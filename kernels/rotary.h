// Rotary position embeddings of rows of heads, in place or not, in one pass.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// The direction in which pairs are rotated: Forward as in the forward pass; Back for its gradient.
enum class Turn : std::uint8_t { Forward, Back };

/// Rows of heads, one row for each token, and the tables of their positions.
struct RotaryRows {
  const void* source = nullptr;
  void* target = nullptr;  // may be the source; of the same shape
  DType dtype = DType::Float32;
  std::uint64_t rows = 0;
  std::uint64_t stride = 0;       // elements of a row, at least heads * width
  std::uint64_t heads = 0;        // heads to rotate, from the row's beginning; the rest is copied
  std::uint64_t width = 0;        // elements of a head; even
  std::uint64_t position = 0;     // position of the first row; positions increase by one per row
  std::uint64_t length = 0;       // positions wrap around to 0 after this many
  const void* cosines = nullptr;  // [length, width / 2], of the same dtype
  const void* sines = nullptr;    // likewise
};

/// Computes for each pair (a, b) = (x[i], x[i + width / 2]) of a head, with cosine c and sine s of
/// its position and i, in fp32, each operation rounded on its own and to the dtype (r):
///   Forward: a' = r(r(a * c) - r(b * s));  b' = r(r(b * c) + r(a * s))
///   Back:    a' = r(r(a * c) + r(b * s));  b' = r(r(b * c) - r(a * s))
/// A row has the same bits on every instruction set, on the GPU, and beside any other rows.
/// Shape: as in RotaryRows; aligned to elements only.
void turn_rows(const RotaryRows& rows, Turn turn) noexcept;

/// The naive version, which equals turn_rows bit for bit (except which NaN).
void turn_rows_naive(const RotaryRows& rows, Turn turn) noexcept;

}  // namespace artesian::kernels
