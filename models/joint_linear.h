// Products of one input with several matrices as one, which a GPU takes less time for: the matrices
// lie side by side in their unit's image, so that they are one there.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/layout.h"

namespace at {
class Tensor;
}

namespace artesian::models {

/// True if matrices of so many elements lie side by side where parameters follow one another, but
/// for the last, which may have any number.
constexpr bool lies_before_others(std::int64_t numel) noexcept {
  return numel % static_cast<std::int64_t>(zero3::parameter_alignment) == 0;
}

/// Returns input matrix^T of all matrices, one below the other. The bits do not depend on where
/// they lie: where they are not side by side, a copy of them is.
/// Shape: input: [..., width]; matrices: two or three of [rows, width]; returns [..., all rows].
/// Gradient: of the matrices, parts of one tensor.
at::Tensor joint_linear(const at::Tensor& input, const std::vector<at::Tensor>& matrices);

}  // namespace artesian::models
