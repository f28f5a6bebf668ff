#include "models/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>

#include "kernels/cross_entropy.h"
#include "models/kernel_call.h"
#include "zero3/torch/matrix_tiles.h"
#include "zero3/torch/module.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_targets(const at::Tensor& targets, std::int64_t vocabulary) {
  if (!targets.is_cpu() || targets.numel() == 0) return;  // on a GPU this would wait
  const auto [least, most] = at::aminmax(targets);
  TORCH_CHECK(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < vocabulary,
              "targets: got ", least.item<std::int64_t>(), " to ", most.item<std::int64_t>(),
              ", allowed 0 to ", vocabulary - 1);
}

void make_gradient(const kernels::CrossEntropyRows& all, c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(device,
                   [&](auto stream) { return kernels::cuda::cross_entropy_rows(all, stream); });
  }
#endif
  over_rows(device, all.rows, all.vocabulary, [&](std::uint64_t begin, std::uint64_t end) {
    kernels::CrossEntropyRows part = all;
    part.logits = advanced(all.logits, begin * all.vocabulary, all.dtype);
    part.rows = end - begin;
    part.targets += begin;
    part.sums += begin;
    part.picked += begin;
    kernels::cross_entropy_rows(part);
  });
}

/// Replaces logits by scale * (softmax(logits) - one_hot(targets)), row by row; returns each row's
/// loss. Shape: logits: [tokens, vocabulary]; targets, result: [tokens].
at::Tensor logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const at::Tensor sums = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const at::Tensor picked = at::empty_like(sums);
  const at::Tensor indices = targets.contiguous();
  check_targets(indices, logits.size(1));
  make_gradient({.logits = logits.mutable_data_ptr(),
                 .dtype = dtype_of(logits),
                 .rows = static_cast<std::uint64_t>(logits.size(0)),
                 .vocabulary = static_cast<std::uint64_t>(logits.size(1)),
                 .targets = indices.const_data_ptr<std::int64_t>(),
                 .scale = static_cast<float>(scale),
                 .sums = sums.mutable_data_ptr<float>(),
                 .picked = picked.mutable_data_ptr<float>()},
                logits.device());
  return sums.log() - picked;
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const WeightGradient& gradient, double loss_multiplier) {
    at::Tensor logits;
    if (input.scalar_type() == at::kFloat) {
      logits = zero3::times_transposed(input, weight);
    } else {
      logits = at::mm(input, weight.t());
    }
    // Multiplies by the loss scale before rounding, as small gradients would otherwise vanish.
    const at::Tensor losses =
        logits_to_gradient(logits, targets, loss_multiplier / static_cast<double>(logits.size(0)));
    context->save_for_backward({input, weight, logits});
    context->saved_data["sink"] = reinterpret_cast<std::int64_t>(gradient.sink);
    context->saved_data["position"] = static_cast<std::int64_t>(gradient.position);
    context->saved_data["multiplier"] = loss_multiplier;
    return losses.mean();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& difference = saved[2];
    // 1, unless the loss was multiplied by another factor than announced; small matrices absorb it.
    const at::Tensor ratio = gradients[0].div(context->saved_data["multiplier"].toDouble());
    at::Tensor input_gradient;
    if (input.scalar_type() == at::kFloat) {
      input_gradient = zero3::times(difference, weight);
    } else {
      input_gradient = at::mm(difference, weight);
    }
    input_gradient.mul_(ratio);
    at::Tensor weights;
    if (context->needs_input_grad(1)) {
      weights = weight_gradient(context, weight, difference, input * ratio);
    }
    return {input_gradient, weights, {}, {}, {}};
  }

 private:
  /// Computes difference^T factor, tile by tile.
  static at::Tensor weight_gradient(AutogradContext* context, const at::Tensor& weight,
                                    const at::Tensor& difference, const at::Tensor& factor) {
    auto* sink = reinterpret_cast<zero3::GradientSink*>(context->saved_data["sink"].toInt());
    const auto position = static_cast<std::size_t>(context->saved_data["position"].toInt());
    // A GPU's cache is too small for a tile, and each tile would be a launch; the engine uses no
    // sink there.
    if (factor.is_cuda() && sink == nullptr) return at::mm(difference.t(), factor);
    at::Tensor whole;
    if (sink == nullptr) whole = at::empty(weight.sizes(), factor.options());
    const auto take = [&](std::int64_t first, const at::Tensor& part) {
      if (sink != nullptr) return sink->add(position, first * weight.size(1), part);
      whole.narrow(0, first, part.size(0)).copy_(part);
    };
    zero3::each_part_of_gradient(difference, factor, take);
    return whole;
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets, WeightGradient gradient,
                                double loss_multiplier) {
  return LinearCrossEntropy::apply(input, weight, targets, gradient, loss_multiplier);
}

}  // namespace artesian::models
