// DeepSpeed's fp16 loss scaler, with the same states. The caller must unscale with the scale that
// the backward pass used: read `scale()` before `update()`.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

class LossScaler {
 public:
  /// fp16: dynamic or static by the config; otherwise a static scale of 1.
  LossScaler(DType param_dtype, const LossScaleConfig& config) noexcept;

  double scale() const noexcept { return scale_; }
  /// Call it once each optimizer step's gradients are known. Errors: Exhausted on an overflow at
  /// the minimum scale.
  Result<void> update(bool overflow) noexcept;

  /// Everything that later updates depend on, besides the configuration.
  struct State {
    double scale = 1.0;
    std::uint32_t hysteresis_left = 0;
    std::uint64_t iteration = 0;
    std::int64_t overflow_last = -1;

    bool operator==(const State&) const = default;
  };
  State state() const noexcept { return {scale_, hysteresis_left_, iteration_, overflow_last_}; }
  /// Restores a saved scaler's state as far as the configuration allows: a static scale is not
  /// changed, and hysteresis and scale are clamped to their bounds.
  void restore(const State& state) noexcept;

 private:
  LossScaleConfig config_;
  bool dynamic_ = false;
  double scale_ = 1.0;
  std::uint32_t hysteresis_left_ = 0;
  std::uint64_t iteration_ = 0;
  std::int64_t overflow_last_ = -1;
};

}  // namespace artesian::zero3
