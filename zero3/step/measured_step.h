// MeasuredStep: chooses the step whose figures say how much of the update backward gets: the first
// that was updated, as was the one before it, so that it had all there is to a step, and that was
// alone with the disk.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3/step/step_result.h"

namespace artesian::zero3 {

class MeasuredStep {
 public:
  /// A step has ended, after so many seconds of backward. `updates`: it was not skipped.
  void end_step(std::uint64_t step, bool updates, double backward_s) noexcept {
    if (updates && updated_before_ && chosen_ == 0) chosen_ = step;
    updated_before_ = updates;
    if (chosen_ == step) backward_s_ = backward_s;
  }
  /// Its update is complete. `alone`: nothing else has used the disk meanwhile.
  void complete(const StepResult& step, bool alone) {
    if (step.step != chosen_) return;
    if (alone) {
      step_ = step;
    } else {
      chosen_ = 0;  // the next one that is
    }
  }
  /// None yet, or the step with its update.
  const std::optional<StepResult>& step() const noexcept { return step_; }
  double backward_s() const noexcept { return backward_s_; }

 private:
  bool updated_before_ = false;
  std::uint64_t chosen_ = 0;  // 0: none
  double backward_s_ = 0.0;   // of the chosen step
  std::optional<StepResult> step_;
};

}  // namespace artesian::zero3
