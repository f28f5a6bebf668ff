// MadeUpTokens: batches of random tokens, the same in every run, for measurements without data.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "zero3/torch/token_batch.h"

namespace artesian::tools {

class MadeUpTokens {
 public:
  struct Shape {
    std::int64_t vocabulary = 0;
    std::uint64_t micro_batches = 0;  // per step
    std::uint64_t samples = 0;        // per micro-batch
    std::uint64_t length = 0;
  };
  explicit MadeUpTokens(const Shape& shape)
      : vocabulary_(static_cast<std::uint64_t>(shape.vocabulary)) {
    for (std::uint64_t micro = 0; micro < shape.micro_batches; ++micro) {
      tokens_.emplace_back(shape.samples, shape.length);
    }
  }

  /// Returns the next step's micro-batches; valid until the next call.
  std::vector<zero3::Batch> next() {
    std::vector<zero3::Batch> batches;
    for (zero3::TokenBatch& batch : tokens_) {
      for (const auto ids : {batch.ids(), batch.targets()}) {
        for (auto& id : ids) {
          id = static_cast<std::int64_t>(random_word(1, 0, draw_++) % vocabulary_);
        }
      }
      batches.push_back(batch.batch());
    }
    return batches;
  }

 private:
  const std::uint64_t vocabulary_;
  std::vector<zero3::TokenBatch> tokens_;
  std::uint64_t draw_ = 0;
};

}  // namespace artesian::tools
