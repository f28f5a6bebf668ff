#include "models/rotary.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/rotary.h"
#include "models/kernel_call.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Shape: [width / 2]: 0, 2 / width, 4 / width ...
at::Tensor exponents(std::int64_t width) {
  return at::arange(0, width, 2, at::kFloat) / static_cast<double>(width);
}

at::Tensor plain(double theta, std::int64_t width) {
  return at::pow(theta, exponents(width)).reciprocal();
}

/// NTK scaling: beyond the model's positions the base grows with the length, in fp32.
at::Tensor dynamic(const RotaryConfig& config, std::int64_t length) {
  const auto width = static_cast<double>(config.head);
  const auto positions = static_cast<double>(config.positions);
  const double power = width / (width - 2.0);
  if (length <= config.positions) {
    const double growth = config.factor * positions / positions - (config.factor - 1.0);
    return plain(config.theta * std::pow(growth, power), config.head);
  }
  const at::Tensor tokens = at::full({}, length, at::kLong);
  const at::Tensor growth = tokens * config.factor / positions - (config.factor - 1.0);
  return at::pow(growth.pow(power) * config.theta, exponents(config.head)).reciprocal();
}

/// The dimension that makes this many turns over the original positions.
double turning_dimension(const RotaryConfig& config, double turns) {
  const double span = static_cast<double>(config.original_positions);
  return static_cast<double>(config.head) * std::log(span / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.theta));
}

/// Dimensions with many turns are unchanged, those with few are interpolated, with a ramp in
/// between.
at::Tensor yarn(const RotaryConfig& config) {
  double low = turning_dimension(config, config.beta_fast);
  double high = turning_dimension(config, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      at::arange(config.head / 2, at::kFloat).sub(low).div(high - low).clamp(0, 1);
  const at::Tensor kept = at::rsub(ramp, 1);
  const at::Tensor steps = at::pow(config.theta, exponents(config.head));
  return (steps * config.factor).reciprocal() * at::rsub(kept, 1) + steps.reciprocal() * kept;
}

at::Tensor longrope(const RotaryConfig& config, std::int64_t length) {
  const bool is_long = length > config.original_positions;
  const at::Tensor factors =
      at::tensor(is_long ? config.long_factor : config.short_factor, at::kDouble).to(at::kFloat);
  return (factors * at::pow(config.theta, exponents(config.head))).reciprocal();
}

/// Long waves are stretched, short ones unchanged, with a smooth transition in between.
at::Tensor llama3(const RotaryConfig& config) {
  const at::Tensor frequencies = plain(config.theta, config.head);
  const auto span = static_cast<double>(config.original_positions);
  const double low = config.low_frequency_factor;
  const double high = config.high_frequency_factor;
  const at::Tensor waves = frequencies.reciprocal() * (2.0 * std::numbers::pi);
  const at::Tensor is_long = waves > span / low;
  const at::Tensor is_short = waves < span / high;
  const at::Tensor stretched = at::where(is_long, frequencies / config.factor, frequencies);
  const at::Tensor smooth = (waves.reciprocal() * span - low) / (high - low);
  const at::Tensor between = at::rsub(smooth, 1) * stretched / config.factor + smooth * stretched;
  return at::where(is_long.logical_or(is_short), stretched, between);
}

/// Shape: from, to: [samples, length, ...], contiguous; cosines, sines: [length, width / 2].
kernels::RotaryRows rows_of(const at::Tensor& from, const at::Tensor& to, std::int64_t heads,
                            const at::Tensor& cosines, const at::Tensor& sines) {
  const auto rows = static_cast<std::uint64_t>(from.size(0) * from.size(1));
  return {.source = from.const_data_ptr(),
          .target = to.mutable_data_ptr(),
          .dtype = dtype_of(from),
          .rows = rows,
          .stride = static_cast<std::uint64_t>(from.numel()) / std::max<std::uint64_t>(rows, 1),
          .heads = static_cast<std::uint64_t>(heads),
          .width = static_cast<std::uint64_t>(2 * cosines.size(1)),
          .length = static_cast<std::uint64_t>(cosines.size(0)),
          .cosines = cosines.const_data_ptr(),
          .sines = sines.const_data_ptr()};
}

void run(const kernels::RotaryRows& all, kernels::Turn turn, c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(device,
                   [&](auto stream) { return kernels::cuda::turn_rows(all, turn, stream); });
  }
#endif
  over_rows(device, all.rows, all.stride, [&](std::uint64_t begin, std::uint64_t end) {
    kernels::RotaryRows part = all;
    part.source = advanced(all.source, begin * all.stride, all.dtype);
    part.target = advanced(all.target, begin * all.stride, all.dtype);
    part.rows = end - begin;
    part.position = begin;
    kernels::turn_rows(part, turn);
  });
}

/// True if autograd allows an in-place change without cost; for a view it would copy the whole
/// base.
bool may_change(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_view() &&
         !(tensor.is_leaf() && tensor.requires_grad());
}

class TurnHeads : public torch::autograd::Function<TurnHeads> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, std::int64_t heads,
                            const at::Tensor& cosines, const at::Tensor& sines) {
    const bool in_place = may_change(given);
    const at::Tensor source = given.contiguous();
    const at::Tensor target = in_place ? source : at::empty_like(source);
    if (in_place) context->mark_dirty({given});
    run(rows_of(source, target, heads, cosines, sines), kernels::Turn::Forward, given.device());
    context->save_for_backward({cosines, sines});
    context->saved_data["heads"] = heads;
    return target;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor outer = gradients[0].contiguous();
    const at::Tensor result = at::empty_like(outer);
    const std::int64_t heads = context->saved_data["heads"].toInt();
    run(rows_of(outer, result, heads, saved[0], saved[1]), kernels::Turn::Back, outer.device());
    return {result, {}, {}, {}};
  }
};

}  // namespace

at::Tensor Rotary::frequencies(std::int64_t length) const {
  switch (config_.scaling) {
    case RotaryScaling::None: break;
    case RotaryScaling::Linear: return plain(config_.theta, config_.head) / config_.factor;
    case RotaryScaling::Dynamic: return dynamic(config_, length);
    case RotaryScaling::Yarn: return yarn(config_);
    case RotaryScaling::LongRope: return longrope(config_, length);
    case RotaryScaling::Llama3: return llama3(config_);
  }
  return plain(config_.theta, config_.head);
}

void Rotary::prepare(const at::Tensor& like, std::int64_t length) {
  if (cosines_.defined() && cosines_.size(0) == length &&
      cosines_.scalar_type() == like.scalar_type() && cosines_.device() == like.device()) {
    return;
  }
  const at::Tensor angles = at::outer(at::arange(length, at::kFloat), frequencies(length));
  cosines_ = (angles.cos() * config_.attention_factor).to(like.options().requires_grad(false));
  sines_ = (angles.sin() * config_.attention_factor).to(like.options().requires_grad(false));
}

at::Tensor Rotary::turn(const at::Tensor& tokens, std::int64_t heads) {
  TORCH_CHECK(
      tokens.dim() >= 3 && tokens.numel() >= tokens.size(0) * tokens.size(1) * heads * config_.head,
      "rotary: got ", tokens.sizes(), ", allowed ", heads, " heads of ", config_.head);
  prepare(tokens, tokens.size(1));
  return TurnHeads::apply(tokens, heads, cosines_, sines_);
}

}  // namespace artesian::models
