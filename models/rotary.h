// Rotary position embeddings (Su et al. 2021) with the scalings of rotary_config.h, by the same
// operations in fp32 as transformers' modeling_rope_utils.py.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/rotary_config.h"

namespace artesian::models {

class Rotary {
 public:
  explicit Rotary(RotaryConfig config) : config_(std::move(config)) {}

  /// Turns each pair (i, i + width / 2) of each head by position times frequency i.
  /// Shape:  tokens, result: [samples, length, ...]: `heads` heads of `width` at the begin of each
  ///         token's elements; what follows stays.
  /// Memory: tokens becomes the result, if it is no view and no leaf; nothing is kept of it.
  /// Thread: one at a time.
  at::Tensor turn(const at::Tensor& tokens, std::int64_t heads);

  /// Shape: [width / 2], fp32, for sequences of `length` tokens.
  at::Tensor frequencies(std::int64_t length) const;

 private:
  void prepare(const at::Tensor& like, std::int64_t length);

  RotaryConfig config_;
  at::Tensor cosines_;  // [length, width / 2] in the dtype of the heads: of the last length seen
  at::Tensor sines_;
};

}  // namespace artesian::models
