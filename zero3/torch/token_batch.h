// TokenBatch: a batch of token ids in plain memory, for trainers of language models that have no
// other use for LibTorch's headers. Fill ids() and targets(), hand batch() to the engine, fill them
// again: the engine keeps a copy of what it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "zero3/torch/module.h"

namespace artesian::zero3 {

class TokenBatch {
 public:
  /// Shape of both: [samples, length], int64, zeros at first.
  TokenBatch(std::uint64_t samples, std::uint64_t length);
  TokenBatch(TokenBatch&&) noexcept;
  ~TokenBatch();

  /// Row-major; valid as long as this lives.
  std::span<std::int64_t> ids() noexcept;
  std::span<std::int64_t> targets() noexcept;
  /// Borrows this.
  Batch batch() const noexcept;

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace artesian::zero3
