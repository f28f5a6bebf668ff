#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zero3/step/parameter_groups.h"

namespace artesian::zero3 {

/// Holds what the caller of a step decides.
struct StepRequest {
  /// How many micro-batches the step has; 0: config.accumulation_steps.
  std::uint64_t micro_batches = 0;
  /// Absent: the schedule's. An update that began under backward with another rate is rolled back,
  /// or is an error if that is impossible.
  std::optional<double> learning_rate{};
  /// Constants by ParameterSpec::group, in place of the engine's groups and of the learning rate,
  /// for this step. None: those. Where the update began under backward, as another learning rate.
  std::vector<GroupStep> groups{};
};

}  // namespace artesian::zero3
