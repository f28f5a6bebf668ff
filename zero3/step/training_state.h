// TrainingState: what a training's next step depends on besides weights, moments and data: about
// 200 bytes, a number for each parameter, and the states of random generators.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zero3/step/loss_scaler.h"

namespace artesian::zero3 {

struct TrainingState {
  std::uint64_t step = 0;     // optimizer steps so far, skipped ones included
  std::uint64_t updates = 0;  // steps that made an update: the schedule's position
  /// By parameter: number of its updates, for bias correction. Empty: `updates` for all.
  std::vector<std::uint64_t> parameter_steps{};
  std::uint64_t skipped_in_a_row = 0;  // for StepGuard
  LossScaler::State scaler{};
  /// Opaque bytes by generator, "cpu" or "cuda:0", for modules that draw random numbers themselves.
  std::map<std::string, std::string> random{};

  bool operator==(const TrainingState&) const = default;
};

}  // namespace artesian::zero3
