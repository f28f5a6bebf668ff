#include "models/rotary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace artesian::models {
namespace {

/// Shape: [width / 2]: 0, 2 / width, 4 / width ...
at::Tensor exponents(std::int64_t width) {
  return at::arange(0, width, 2, at::kFloat) / static_cast<double>(width);
}

at::Tensor plain(double theta, std::int64_t width) {
  return at::pow(theta, exponents(width)).reciprocal();
}

/// NTK scaling: from the model's positions on, the base grows with the length, in fp32.
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

/// Dimensions of many turns stay, those of few are interpolated, with a ramp between.
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

/// Long waves are stretched, short ones stay, and between the two factors is a smooth way.
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
  const at::Tensor twice = at::cat({angles, angles}, 1);
  cosines_ = (twice.cos() * config_.attention_factor).to(like.options());
  sines_ = (twice.sin() * config_.attention_factor).to(like.options());
}

at::Tensor Rotary::turn(const at::Tensor& heads) {
  prepare(heads, heads.size(2));
  const auto halves = heads.chunk(2, 3);
  return heads * cosines_ + at::cat({halves[1].neg(), halves[0]}, 3) * sines_;
}

}  // namespace artesian::models
