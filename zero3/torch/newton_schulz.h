// Newton-Schulz iteration: the matrix of a Muon update made orthogonal, by LibTorch on the CPU.
#pragma once

#include "zero3/step/matrix_update.h"

namespace artesian::zero3 {

/// As DeepSpeed 0.19.8 on a CPU: Gram in fp32, on the small matrix of inner products, Standard in
/// bf16. Allocates nothing that grows with the matrix. Source: Jordan et al. 2024 (Muon), with the
/// coefficients and order of deepspeed/runtime/zero/muon/original_muon.py.
/// Errors: Unsupported, with what LibTorch says.
Result<void> newton_schulz(const MatrixUpdate& update) noexcept;

}  // namespace artesian::zero3
