// MeasuredStep: chooses the step whose figures decide how much of the update runs under backward:
// the first step for which neither it nor the step before it was skipped, and no checkpoint used
// the disk. Such a step did everything that a step does.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3/step/step_result.h"

namespace artesian::zero3 {

class MeasuredStep {
 public:
  /// Called at the end of a step, whose backward took `backward_s` seconds. `updates`: the step was
  /// not skipped.
  void end_step(std::uint64_t step, bool updates, double backward_s) noexcept {
    if (updates && updated_before_ && chosen_ == 0) chosen_ = step;
    updated_before_ = updates;
    if (chosen_ == step) backward_s_ = backward_s;
  }
  /// Called when the update of a step is complete. `alone`: nothing else used the disk meanwhile.
  void complete(const StepResult& step, bool alone) {
    if (step.step != chosen_) return;
    if (alone) {
      step_ = step;
    } else {
      chosen_ = 0;  // take the next one
    }
  }
  /// The measured step, once its update is complete.
  const std::optional<StepResult>& step() const noexcept { return step_; }
  double backward_s() const noexcept { return backward_s_; }

 private:
  bool updated_before_ = false;
  std::uint64_t chosen_ = 0;  // 0: none
  double backward_s_ = 0.0;   // of the chosen step
  std::optional<StepResult> step_;
};

}  // namespace artesian::zero3
