#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zero3/step/parameter_groups.h"

namespace artesian::zero3 {

/// What the caller of a step decides.
struct StepRequest {
  /// Number of micro-batches of the step; 0: config.accumulation_steps.
  std::uint64_t micro_batches = 0;
  /// Absent: the schedule's. An update that began under backward with another rate is rolled back,
  /// or is an error if that is impossible.
  std::optional<double> learning_rate{};
  /// Constants by ParameterSpec::group, which replace the engine's groups and the learning rate in
  /// this step. Empty: the engine's. If the update began under backward with others, as for the
  /// learning rate.
  std::vector<GroupStep> groups{};
};

}  // namespace artesian::zero3
