// The head of a language model in one autograd function: logits, softmax and its gradient share one
// buffer of [tokens, vocabulary], the largest tensor of a small model's step. The weight is worked
// on in tiles that stay in cache: expanded where it is stored in 16 bit and computed in fp32, and
// its gradient handed on, so that neither is there whole.
#pragma once

#include <cstddef>

namespace at {
class Tensor;
}
namespace artesian::zero3 {
class GradientSink;
}

namespace artesian::models {

/// Says where the weight's gradient goes: to a sink, as of forward()'s parameter `position`, or
/// without one to autograd.
struct WeightGradient {
  zero3::GradientSink* sink = nullptr;
  std::size_t position = 0;
};

/// Mean over the tokens of the cross entropy of softmax(input weight^T) with the targets.
/// Shape:    input: [tokens, hidden]; weight: [vocabulary, hidden], of the same dtype, or narrower
///           beside fp32; targets: [tokens], int64, each in [0, vocabulary): on the CPU another one
///           throws, on a GPU the loss is a NaN. Returns a scalar in fp32.
/// Gradient: of input, a new tensor in its dtype; of weight, to `gradient`. It is rounded to the
///           dtype of input when it has been multiplied by `loss_multiplier`, by which backward is
///           expected to multiply the loss; so in fp16 that keeps small ones from vanishing. The
///           bits do not depend on the weight's dtype, if its values are the same, nor on where
///           its gradient goes.
/// Memory:   one [tokens, vocabulary] buffer in the dtype of input from forward to backward: logits
///           and then, in their place, their gradient; and a tile.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets, WeightGradient gradient = {},
                                double loss_multiplier = 1.0);

}  // namespace artesian::models
