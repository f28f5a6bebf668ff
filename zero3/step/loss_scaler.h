// The fp16 loss scaler of DeepSpeed, state for state. The caller unscales with the scale that the
// backward pass used: read `scale()` before `update()`.
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
  /// After each optimizer step's gradients are known. Errors: Exhausted when an overflow meets the
  /// minimum scale.
  Result<void> update(bool overflow) noexcept;

  /// All that a later update depends on, besides the configuration.
  struct State {
    double scale = 1.0;
    std::uint32_t hysteresis_left = 0;
    std::uint64_t iteration = 0;
    std::int64_t overflow_last = -1;

    bool operator==(const State&) const = default;
  };
  State state() const noexcept { return {scale_, hysteresis_left_, iteration_, overflow_last_}; }
  /// Restores a saved scaler's state as far as the configuration allows: a static scale stays, and
  /// hysteresis and scale are kept within their bounds.
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
