// TrainingState: what a training's next step depends on beside weights, moments and data: some 200
// bytes, a number for each parameter, and what random generators say of themselves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zero3/step/loss_scaler.h"

namespace artesian::zero3 {

struct TrainingState {
  std::uint64_t step = 0;     // optimizer steps so far, skipped ones included
  std::uint64_t updates = 0;  // applied steps: the schedule's position
  /// By parameter, the updates that it has had: its bias correction. Empty: `updates`, of all.
  std::vector<std::uint64_t> parameter_steps{};
  std::uint64_t skipped_in_a_row = 0;  // StepGuard
  LossScaler::State scaler{};
  /// Opaque bytes by generator, "cpu" or "cuda:0", for modules that draw numbers themselves.
  std::map<std::string, std::string> random{};

  bool operator==(const TrainingState&) const = default;
};

}  // namespace artesian::zero3
