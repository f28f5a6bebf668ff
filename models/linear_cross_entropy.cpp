#include "models/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t elements_per_pass = 256 << 10;  // 1 MiB of logits: the passes stay in cache

/// Replaces logits by softmax(logits) - one_hot(targets), row by row; returns each row's loss.
/// Shape: logits: [tokens, vocabulary], fp32; targets, result: [tokens].
at::Tensor logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets) {
  const std::int64_t tokens = logits.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, elements_per_pass / logits.size(1));
  at::Tensor losses = at::empty({tokens}, logits.options());
  for (std::int64_t first = 0; first < tokens; first += step) {
    const std::int64_t count = std::min(step, tokens - first);
    at::Tensor rows = logits.narrow(0, first, count);
    const at::Tensor columns = targets.narrow(0, first, count).unsqueeze(1);
    rows.sub_(rows.amax(1, /*keepdim=*/true));
    const at::Tensor picked = rows.gather(1, columns);
    rows.exp_();
    const at::Tensor sums = rows.sum(1, /*keepdim=*/true);
    losses.narrow(0, first, count).copy_((sums.log() - picked).squeeze(1));
    rows.div_(sums);
    rows.scatter_(1, columns, rows.gather(1, columns).sub_(1.0));
  }
  return losses;
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& targets) {
    at::Tensor logits = at::mm(input, weight.t());
    if (logits.scalar_type() != at::kFloat) logits = logits.to(at::kFloat);
    const at::Tensor losses = logits_to_gradient(logits, targets);
    context->save_for_backward({input, weight, logits});
    return losses.mean();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    at::Tensor difference = saved[2];
    const at::Tensor scale = gradients[0].div(static_cast<double>(difference.size(0)));
    if (input.scalar_type() == at::kFloat) {  // scale the small factors, not the large one
      at::Tensor input_gradient = at::mm(difference, weight).mul_(scale);
      return {input_gradient, at::mm(difference.t(), input * scale), {}};
    }
    // The loss scale must come in before the narrow dtype, or small differences would vanish in it.
    difference = difference.mul_(scale).to(input.scalar_type());
    return {at::mm(difference, weight), at::mm(difference.t(), input), {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets) {
  return LinearCrossEntropy::apply(input, weight, targets);
}

}  // namespace artesian::models
