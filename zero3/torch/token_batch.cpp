#include "zero3/torch/token_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace artesian::zero3 {

struct TokenBatch::Tensors {
  at::Tensor ids;
  at::Tensor targets;
};

TokenBatch::TokenBatch(std::uint64_t samples, std::uint64_t length) {
  const auto zeros = [&] {
    return at::zeros({static_cast<std::int64_t>(samples), static_cast<std::int64_t>(length)},
                     at::kLong);
  };
  tensors_ = std::make_unique<Tensors>(Tensors{zeros(), zeros()});
}

TokenBatch::TokenBatch(TokenBatch&&) noexcept = default;
TokenBatch::~TokenBatch() = default;

std::span<std::int64_t> TokenBatch::ids() noexcept {
  at::Tensor& ids = tensors_->ids;
  return {ids.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())};
}

std::span<std::int64_t> TokenBatch::targets() noexcept {
  at::Tensor& targets = tensors_->targets;
  return {targets.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(targets.numel())};
}

Batch TokenBatch::batch() const noexcept {
  return {tensors_->ids, tensors_->targets};
}

}  // namespace artesian::zero3
