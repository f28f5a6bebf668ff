// The head of a language model in one autograd function: logits, softmax and its gradient share one
// buffer of [tokens, vocabulary], the largest tensor of a small model's step.
#pragma once

namespace at {
class Tensor;
}

namespace artesian::models {

/// Mean over the tokens of the cross entropy of softmax(input weight^T) with the targets, in fp32.
/// Shape:    input: [tokens, hidden]; weight: [vocabulary, hidden], same dtype; targets: [tokens],
///           int64, each in [0, vocabulary). Returns a scalar.
/// Gradient: of input and of weight, each a new tensor in its dtype. Once only: it uses the buffer
/// up
///           when the dtype is narrower than fp32.
/// Memory:   one [tokens, vocabulary] buffer in fp32 from forward to backward (two for a moment
/// where
///           the dtype is narrower).
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets);

}  // namespace artesian::models
