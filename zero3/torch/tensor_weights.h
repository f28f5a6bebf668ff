// Initial weights from tensors that the trainer already has in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "zero3/step/weights.h"

namespace artesian::zero3 {

class TensorWeights final : public WeightSource {
 public:
  /// Shape: tensors[i] is parameter i, in its shape; any floating dtype, on any device. A
  /// contiguous tensor is not copied, since a model may be larger than memory. Errors: Invalid,
  /// naming the first parameter that does not fit.
  static Result<TensorWeights> create(const std::vector<ParameterSpec>& parameters,
                                      std::vector<at::Tensor> tensors);

  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override;

 private:
  explicit TensorWeights(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  std::vector<at::Tensor> tensors_;  // contiguous
};

}  // namespace artesian::zero3
