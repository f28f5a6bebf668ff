#include "models/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "zero3/torch/module.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t elements_per_pass = 256 << 10;  // 1 MiB of logits: the passes stay in cache
constexpr std::int64_t elements_per_tile = 4 << 20;    // 16 MiB in fp32: in the last cache

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
                            const WeightGradient& gradient) {
    at::Tensor logits;
    if (input.scalar_type() == at::kFloat) {
      logits = at::empty({input.size(0), weight.size(0)}, input.options().requires_grad(false));
      Tiles(weight, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
        at::Tensor columns = logits.narrow(1, first, tile.size(0));
        at::mm_out(columns, input, tile.t());
      });
    } else {
      logits = at::mm(input, weight.t()).to(at::kFloat);
    }
    const at::Tensor losses = logits_to_gradient(logits, targets);
    context->save_for_backward({input, weight, logits});
    context->saved_data["sink"] = reinterpret_cast<std::int64_t>(gradient.sink);
    context->saved_data["position"] = static_cast<std::int64_t>(gradient.position);
    return losses.mean();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    at::Tensor difference = saved[2];
    const at::Tensor scale = gradients[0].div(static_cast<double>(difference.size(0)));
    at::Tensor input_gradient;
    at::Tensor factor = input;                // of the weight's gradient, the other one
    if (input.scalar_type() == at::kFloat) {  // scale the small factors, not the large one
      input_gradient = at::zeros_like(input);
      Tiles(weight, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
        input_gradient.addmm_(difference.narrow(1, first, tile.size(0)), tile);
      });
      input_gradient.mul_(scale);
      factor = input * scale;
    } else {  // the loss scale must come in before the narrow dtype, or small ones would vanish
      difference = difference.mul_(scale).to(input.scalar_type());
      input_gradient = at::mm(difference, weight);
    }
    at::Tensor weights;
    if (context->needs_input_grad(1)) {
      weights = weight_gradient(context, weight, difference, factor);
    }
    return {input_gradient, weights, {}, {}};
  }

 private:
  /// difference^T factor, tile by tile.
  static at::Tensor weight_gradient(AutogradContext* context, const at::Tensor& weight,
                                    const at::Tensor& difference, const at::Tensor& factor) {
    auto* sink = reinterpret_cast<zero3::GradientSink*>(context->saved_data["sink"].toInt());
    const auto position = static_cast<std::size_t>(context->saved_data["position"].toInt());
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
                                const at::Tensor& targets, WeightGradient gradient) {
  return LinearCrossEntropy::apply(input, weight, targets, gradient);
}

}  // namespace artesian::models
