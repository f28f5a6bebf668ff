#pragma once

#include <cstdint>
#include <optional>

namespace artesian::zero3 {

/// What the caller of a step decides.
struct StepRequest {
  /// How many micro-batches the step has; 0: config.accumulation_steps.
  std::uint64_t micro_batches = 0;
  /// Nothing: the schedule's. Where the update began under backward with another one, it is taken
  /// back, or, where that cannot be, an error.
  std::optional<double> learning_rate{};
};

}  // namespace artesian::zero3
