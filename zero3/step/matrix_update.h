// The function that orthogonalizes the matrix of a Muon update. It needs matrix products, so the
// driver provides it: zero3/torch/newton_schulz.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

struct MatrixUpdate {
  float* values = nullptr;  // [rows, columns], updated in place
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  NewtonSchulz method = NewtonSchulz::Gram;
  std::span<std::byte> workspace;  // at least orthogonal_bytes(rows, columns), aligned to 64
};

/// Thread: the training thread, which waits.
using Orthogonalize = std::function<Result<void>(const MatrixUpdate& update)>;

}  // namespace artesian::zero3
