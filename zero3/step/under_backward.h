// Runs the update under backward of a training step: a unit is updated once its own gradient is
// final, while earlier units are still in backward. plan/units_under_backward.h chooses the units;
// its Note [Speculation] explains what is rolled back, and when.
#pragma once

#include <vector>

#include "zero3/flow/under_backward_flow.h"
#include "zero3/plan/units_under_backward.h"
#include "zero3/step/gradients.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// Thread: the compute thread.
class UnderBackward : public UnderBackwardFlow<Gradients, Optimizer> {
 public:
  /// All must outlive it. `hooked`: everything done under backward must also be possible to roll
  /// back.
  UnderBackward(const Config& config, ModelState& state, const std::vector<StageSpec>& stages,
                bool hooked, Gradients& gradients, Optimizer& optimizer);

  /// True if an update under backward is possible, and its share is not chosen yet.
  bool undecided() const noexcept { return undecided_; }
  /// Sets the share. If the disk has no room for rolling back, nothing is updated under backward,
  /// with a line in the log. Errors: Io.
  Result<void> decide(double share) noexcept;
  /// UnderBackwardFlow::begin. If nothing is updated under the backward, state that is updated
  /// first afterwards is read ahead. `constants`: those for unclipped gradients with this loss
  /// scale. Errors: Io, Timeout.
  Result<void> begin(StepConstants constants, double loss_scale) noexcept;

 private:
  ModelState& state_;
  const std::vector<StageSpec>& stages_;
  Optimizer& optimizer_;
  const bool hooked_;
  const bool speculative_;
  const double clipping_;  // see clip.h
  bool undecided_ = false;
};

}  // namespace artesian::zero3
