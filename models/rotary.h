// Rotary position embeddings (Su et al. 2021) with the scalings of rotary_config.h, by the same
// operations in fp32 as transformers' modeling_rope_utils.py.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/rotary_config.h"

namespace artesian::models {

class Rotary {
 public:
  explicit Rotary(RotaryConfig config) : config_(std::move(config)) {}

  /// Rotates each pair (i, i + width / 2) of each head by position times frequency i. Shape:
  /// tokens, result: [samples, length, ...]: `heads` heads of `width` at the beginning of each
  ///         token's elements; the rest is unchanged.
  /// Memory: the result reuses the memory of tokens unless that is a view or a leaf; tokens is not
  /// kept. Thread: one at a time.
  at::Tensor turn(const at::Tensor& tokens, std::int64_t heads);

  /// Shape: [width / 2], fp32, for sequences of `length` tokens.
  at::Tensor frequencies(std::int64_t length) const;

 private:
  void prepare(const at::Tensor& like, std::int64_t length);

  RotaryConfig config_;
  at::Tensor cosines_;  // [length, width / 2] in the heads' dtype, for the last length used
  at::Tensor sines_;
};

}  // namespace artesian::models
