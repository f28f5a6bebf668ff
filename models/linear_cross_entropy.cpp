#include "models/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cross_entropy.h"
#include "models/kernel_call.h"
#include "zero3/torch/module.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t elements_per_tile = 4 << 20;  // 16 MiB in fp32: in the last cache

void check_targets(const at::Tensor& targets, std::int64_t vocabulary) {
  if (!targets.is_cpu() || targets.numel() == 0) return;  // a GPU's would be waited for
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

/// A matrix by tiles of its rows, each in `dtype`: a view, or in a buffer that the next one takes.
class Tiles {
 public:
  Tiles(const at::Tensor& matrix, at::ScalarType dtype)
      : matrix_(matrix.detach()), rows_(tile_rows(matrix.size(1))) {
    if (matrix.scalar_type() == dtype) return;
    const std::int64_t rows = std::min(rows_, matrix.size(0));
    buffer_ = at::empty({rows, matrix.size(1)}, matrix.options().dtype(dtype).requires_grad(false));
  }

  /// Calls `use(first row, tile)` for each in turn.
  template <typename Use>
  void each(const Use& use) const {
    for (std::int64_t first = 0; first < matrix_.size(0); first += rows_) {
      const std::int64_t count = std::min(rows_, matrix_.size(0) - first);
      at::Tensor tile = matrix_.narrow(0, first, count);
      if (buffer_.defined()) tile = buffer_.narrow(0, 0, count).copy_(tile);
      use(first, tile);
    }
  }

 private:
  at::Tensor matrix_;
  std::int64_t rows_;
  at::Tensor buffer_;
};

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const WeightGradient& gradient, double loss_multiplier) {
    at::Tensor logits;
    if (input.scalar_type() == at::kFloat) {
      logits = at::empty({input.size(0), weight.size(0)}, input.options().requires_grad(false));
      Tiles(weight, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
        at::Tensor columns = logits.narrow(1, first, tile.size(0));
        at::mm_out(columns, input, tile.t());
      });
    } else {
      logits = at::mm(input, weight.t());
    }
    // The loss scale comes in before the gradient is rounded, or small ones would vanish.
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
    // 1, unless the loss is multiplied by something else than was said; the small factors take it.
    const at::Tensor ratio = gradients[0].div(context->saved_data["multiplier"].toDouble());
    at::Tensor input_gradient;
    if (input.scalar_type() == at::kFloat) {
      input_gradient = at::zeros_like(input);
      Tiles(weight, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
        input_gradient.addmm_(difference.narrow(1, first, tile.size(0)), tile);
      });
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
  /// difference^T factor, tile by tile.
  static at::Tensor weight_gradient(AutogradContext* context, const at::Tensor& weight,
                                    const at::Tensor& difference, const at::Tensor& factor) {
    auto* sink = reinterpret_cast<zero3::GradientSink*>(context->saved_data["sink"].toInt());
    const auto position = static_cast<std::size_t>(context->saved_data["position"].toInt());
    // A GPU's cache takes no tile, and each would be a launch; the engine gives it no sink.
    if (factor.is_cuda() && sink == nullptr) return at::mm(difference.t(), factor);
    const std::int64_t rows = tile_rows(weight.size(1));
    const std::int64_t kept = sink == nullptr ? weight.size(0) : std::min(rows, weight.size(0));
    at::Tensor buffer = at::empty({kept, weight.size(1)}, factor.options());
    for (std::int64_t first = 0; first < weight.size(0); first += rows) {
      const std::int64_t count = std::min(rows, weight.size(0) - first);
      at::Tensor part = buffer.narrow(0, sink == nullptr ? first : 0, count);
      at::mm_out(part, difference.narrow(1, first, count).t(), factor);
      if (sink != nullptr) sink->add(position, first * weight.size(1), part);
    }
    return sink == nullptr ? buffer : at::Tensor();
  }
};

}  // namespace

std::int64_t tile_rows(std::int64_t width) noexcept {
  return std::max<std::int64_t>(64, elements_per_tile / width / 64 * 64);
}

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& targets, WeightGradient gradient,
                                double loss_multiplier) {
  return LinearCrossEntropy::apply(input, weight, targets, gradient, loss_multiplier);
}

}  // namespace artesian::models
