// HeldOut: the mean loss over data that is not used for training. Evaluations do not change the
// training (zero3/torch/engine.h).
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "models/data/token_data.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {

class HeldOut {
 public:
  /// `samples`: per forward; each call evaluates every sample of the data once, in order.
  HeldOut(models::TokenData data, std::uint64_t samples, std::uint64_t length)
      : data_(std::move(data)), samples_(samples), length_(length) {}

  /// Returns the mean over all targets. Errors: the engine's; Cancelled if `stops` returned true.
  Result<double> loss(zero3::Engine& engine, const std::function<bool()>& stops);

 private:
  models::TokenData data_;
  std::uint64_t samples_;
  std::uint64_t length_;
};

}  // namespace artesian::tools
