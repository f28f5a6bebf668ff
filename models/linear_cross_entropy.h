// The head of a language model in one autograd function: logits, softmax and its gradient share one
// buffer of [tokens, vocabulary], the largest tensor of a small model's step. The weight is
// processed in tiles that stay in cache. If it is stored in 16 bit and computed in fp32, each tile
// is expanded. Its gradient, too, is passed on tile by tile, so that neither is ever complete in
// memory.
#pragma once

#include <cstddef>

namespace at {
class Tensor;
}
namespace artesian::zero3 {
class GradientSink;
}

namespace artesian::models {

/// The destination of the weight's gradient: a sink, for forward()'s parameter `position`, or,
/// without a sink, autograd.
struct WeightGradient {
  zero3::GradientSink* sink = nullptr;
  std::size_t position = 0;
};

/// The cross entropy of softmax(input weight^T) with the targets, averaged over the tokens. Shape:
/// input: [tokens, hidden]; weight: [vocabulary, hidden], of the same dtype, or narrower
///           if the input is fp32; targets: [tokens], int64, each in [0, vocabulary): otherwise the
///           CPU throws, and on a GPU the loss is a NaN. Returns a scalar in fp32.
/// Gradient: of input, a new tensor in its dtype; of weight, to `gradient`. It is rounded to the
///           dtype of input after multiplication by `loss_multiplier`, by which backward is
///           expected to multiply the loss; in fp16 this keeps small gradients from vanishing. For
///           equal values, the bits depend neither on the weight's dtype nor on the destination
///           of its gradient.
/// Memory:   one [tokens, vocabulary] buffer in the dtype of input from forward to backward: first
///           the logits, then their gradient; and a tile.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets, WeightGradient gradient = {},
                                double loss_multiplier = 1.0);

}  // namespace artesian::models
