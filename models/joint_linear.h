// Computes products of one input with several matrices as a single product, which is faster on a
// GPU: the matrices lie side by side in their unit's image, and so form one matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/layout.h"

namespace at {
class Tensor;
}

namespace artesian::models {

/// True if consecutive parameters with this number of elements lie side by side without padding;
/// the last one may have any size.
constexpr bool lies_before_others(std::int64_t numel) noexcept {
  return numel % static_cast<std::int64_t>(zero3::parameter_alignment) == 0;
}

/// Returns input matrix^T for all matrices, concatenated. The bits do not depend on where the
/// matrices lie: if they are not side by side, they are copied. Shape: input: [..., width];
/// matrices: two or three of [rows, width]; returns [..., all rows]. Gradient: the matrices'
/// gradients are parts of one tensor.
at::Tensor joint_linear(const at::Tensor& input, const std::vector<at::Tensor>& matrices);

}  // namespace artesian::models
