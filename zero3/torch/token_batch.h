// TokenBatch: a batch of token ids in plain memory, for trainers of language models that do not
// otherwise need LibTorch's headers. Fill ids() and targets(), pass batch() to the engine, and
// reuse them: the engine copies what it needs.
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

  /// Row-major; valid during the life of this object.
  std::span<std::int64_t> ids() noexcept;
  std::span<std::int64_t> targets() noexcept;
  /// The batch refers to this object's memory.
  Batch batch() const noexcept;

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace artesian::zero3
