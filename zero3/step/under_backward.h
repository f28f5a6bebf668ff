// Runs the update under backward of a training step: a unit is updated once its own gradient is
// final, while the units below it are still in backward. Which units those are is decided in
// plan/units_under_backward.h; its Note [Speculation] says what is taken back, and when.
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
  /// All must outlive it. `hooked`: all that is made under backward may be rolled back, besides.
  UnderBackward(const Config& config, ModelState& state, const std::vector<StageSpec>& stages,
                bool hooked, Gradients& gradients, Optimizer& optimizer);

  /// It is allowed, there is something to update so, and the share is still to be chosen.
  bool undecided() const noexcept { return undecided_; }
  /// Decides the share. Where the disk has no room for what may be rolled back, it is none, with a
  /// line in the log. Errors: Io.
  Result<void> decide(double share) noexcept;
  /// UnderBackwardFlow::begin. Where nothing is updated under the backward, what comes first
  /// afterwards is read. The constants are those of gradients of this loss scale that are not
  /// clipped. Errors: Io, Timeout.
  Result<void> begin(StepConstants constants, double loss_scale) noexcept;

 private:
  ModelState& state_;
  const std::vector<StageSpec>& stages_;
  Optimizer& optimizer_;
  const bool hooked_;
  const bool speculative_;
  const double clipping_;  // clip.h
  bool undecided_ = false;
};

}  // namespace artesian::zero3
