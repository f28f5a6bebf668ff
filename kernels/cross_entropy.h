// The softmax of the head in one pass over each row: computes the terms of the loss, and replaces
// the logits by the loss's gradient.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// Rows of logits, one for each token.
struct CrossEntropyRows {
  void* logits = nullptr;  // [rows, vocabulary], contiguous; replaced by the gradient
  DType dtype = DType::Float32;
  std::uint64_t rows = 0;
  std::uint64_t vocabulary = 0;
  const std::int64_t* targets = nullptr;  // [rows]
  float scale = 1.0f;                     // factor of the gradient
  float* sums = nullptr;                  // [rows], out
  float* picked = nullptr;                // [rows], out
};

/// Computes for each row x, with m = max x (ignoring NaNs) and target t, in fp32:
///   e = exponential(x - m);  sums = sum of e;  picked = x[t] - m;  so the loss is log(sums) -
///   picked. The logits become round_to(e * (scale / sums)), that of the target
///   round_to(e * (scale / sums) - scale).
/// The sum is over 256 virtual lanes: element i goes to lane i mod 256, each summed in order, then
/// added up in the fixed order of lane_total() (kernels/lanes.h). So a row has the same bits on
/// every instruction set, on the GPU, and beside any other rows. A logit that is a NaN or an
/// infinity makes `sums` and the gradient NaN; a target outside the vocabulary makes `picked` and
/// the gradient NaN. Shape: as in CrossEntropyRows; any vocabulary > 0, aligned to elements only.
void cross_entropy_rows(const CrossEntropyRows& rows) noexcept;

/// The naive version that cross_entropy_rows equals bit for bit (a NaN: any NaN).
void cross_entropy_rows_naive(const CrossEntropyRows& rows) noexcept;

constexpr int cross_entropy_lanes = 256;

}  // namespace artesian::kernels
