// Newton-Schulz iteration: orthogonalizes the matrix of a Muon update, with LibTorch on the CPU.
#pragma once

#include "zero3/step/matrix_update.h"

namespace artesian::zero3 {

/// As DeepSpeed 0.19.8 on a CPU: Gram iterates in fp32 on the small Gram matrix, Standard in bf16.
/// Allocates no memory that grows with the matrix. Source: Jordan et al. 2024 (Muon), with the
/// coefficients and order of deepspeed/runtime/zero/muon/original_muon.py. Errors: Unsupported,
/// with LibTorch's message.
Result<void> newton_schulz(const MatrixUpdate& update) noexcept;

}  // namespace artesian::zero3
