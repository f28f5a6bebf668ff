#include "zero3/step/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/check.h"

namespace artesian::zero3 {
namespace {

/// DeepSpeed sets no upper bound. A scale of infinity could never decrease, so growth stops at the
/// last finite double; this only happens if gradients stay zero.
double grown(double scale) noexcept {
  const double next = scale * 2.0;
  return std::isfinite(next) ? next : scale;
}

}  // namespace

LossScaler::LossScaler(DType param_dtype, const LossScaleConfig& config) noexcept
    : config_(config), hysteresis_left_(config.hysteresis) {
  if (param_dtype != DType::Float16) return;
  dynamic_ = config.loss_scale <= 0.0;
  scale_ =
      dynamic_ ? std::ldexp(1.0, static_cast<int>(config.initial_scale_power)) : config.loss_scale;
}

Result<void> LossScaler::update(bool overflow) noexcept {
  if (!dynamic_) return {};
  if (overflow) {
    if (config_.hysteresis <= 1 || hysteresis_left_ <= 1) {
      if (scale_ == config_.min_loss_scale) {
        char text[160];
        std::snprintf(text, sizeof text,
                      "at the minimum loss scale %.17g; lower fp16.min_loss_scale or the learning "
                      "rate, or use bf16",
                      scale_);
        return make_error(ErrorCode::Exhausted, text);
      }
      scale_ = std::max(scale_ / 2.0, config_.min_loss_scale);  // hysteresis is not refilled here
    } else {
      --hysteresis_left_;
    }
    overflow_last_ = static_cast<std::int64_t>(iteration_);
  } else {
    if (config_.consecutive_hysteresis) hysteresis_left_ = config_.hysteresis;
    const std::int64_t stable = static_cast<std::int64_t>(iteration_) - overflow_last_ - 1;
    if (stable > 0 && static_cast<std::uint64_t>(stable) % config_.loss_scale_window == 0) {
      if (!config_.consecutive_hysteresis) hysteresis_left_ = config_.hysteresis;
      scale_ = grown(scale_);
    }
  }
  ++iteration_;
  ARTESIAN_CHECK(hysteresis_left_ <= config_.hysteresis, hysteresis_left_, config_.hysteresis);
  return {};
}

void LossScaler::restore(const State& state) noexcept {
  iteration_ = state.iteration;
  overflow_last_ = state.overflow_last;
  if (!dynamic_) return;
  scale_ = std::isfinite(state.scale) ? std::max(state.scale, config_.min_loss_scale) : scale_;
  hysteresis_left_ = std::min(state.hysteresis_left, config_.hysteresis);
}

}  // namespace artesian::zero3
