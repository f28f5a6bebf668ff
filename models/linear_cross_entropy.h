// The head of a language model in one autograd function: logits, softmax and its gradient share one
// buffer of [tokens, vocabulary], the largest tensor of a small model's step. The weight is worked
// on in tiles that stay in cache: expanded where it is stored in 16 bit and computed in fp32, and
// its gradient handed on, so that neither is there whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace at {
class Tensor;
}
namespace artesian::zero3 {
class GradientSink;
}

namespace artesian::models {

/// Where the weight's gradient goes: to a sink, as of forward()'s parameter `position`, or without
/// one to autograd.
struct WeightGradient {
  zero3::GradientSink* sink = nullptr;
  std::size_t position = 0;
};

/// Rows of a tile of a matrix of this width.
std::int64_t tile_rows(std::int64_t width) noexcept;

/// Mean over the tokens of the cross entropy of softmax(input weight^T) with the targets, in fp32.
/// Shape:    input: [tokens, hidden]; weight: [vocabulary, hidden], of the same dtype, or narrower
///           beside fp32; targets: [tokens], int64, each in [0, vocabulary). Returns a scalar.
/// Gradient: of input, a new tensor in its dtype; of weight, to `gradient`. Once only: it uses the
///           buffer up when the dtype is narrower than fp32. The bits do not depend on the weight's
///           dtype, if its values are the same, nor on where its gradient goes.
/// Memory:   one [tokens, vocabulary] buffer in fp32 from forward to backward (two for a moment
///           where the dtype is narrower), and a tile.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets, WeightGradient gradient = {});

}  // namespace artesian::models
