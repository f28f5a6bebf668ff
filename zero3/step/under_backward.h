// Runs the update under backward of a training step: a unit is updated once its own gradient is
// final, while the units below it are still in backward. Which units those are is decided in
// plan/units_under_backward.h; its Note [Speculation] says what is taken back, and when.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3/flow/gradient_order.h"
#include "zero3/plan/units_under_backward.h"
#include "zero3/step/gradients.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// Thread: the compute thread.
class UnderBackward {
 public:
  /// All must outlive it. `hooked`: somebody else runs the model. The order in which its gradients
  /// become final is that of the step before, and all that is made under backward may be taken
  /// back.
  UnderBackward(const Config& config, ModelState& state, const std::vector<StageSpec>& stages,
                bool hooked, Gradients& gradients, Optimizer& optimizer);

  /// It is allowed, there is something to update so, and the share is still to be chosen.
  bool undecided() const noexcept { return undecided_; }
  /// Decides the share. Where the disk has no room for what may be taken back, it is none, with a
  /// line in the log. Errors: Io.
  Result<void> decide(double share) noexcept;
  /// By unit: it is updated under backward.
  const std::vector<bool>& units() const noexcept { return units_; }
  std::ptrdiff_t count() const noexcept { return std::count(units_.begin(), units_.end(), true); }
  /// The last backward of the step begins, and all losses are finite. Where nothing is updated
  /// under it, what comes first afterwards is read. The constants are those of gradients of this
  /// loss scale that are not clipped. Errors: Io, Timeout.
  Result<void> begin(StepConstants constants, double loss_scale) noexcept;
  /// Nothing is added to the unit's gradient any more, says the driver of a hooked model.
  void complete(std::uint32_t unit) { gradient_order_.complete(unit); }
  bool is_complete(std::uint32_t unit) const noexcept { return gradient_order_.is_complete(unit); }
  /// It was wrong, and something is about to be added: give_up() follows.
  void added_late(std::uint32_t unit) noexcept { gradient_order_.added_late(unit); }
  /// Notes that a stage's gradients are all added: updates units that need no waiting. A gradient
  /// that is not finite, or too large, stops that for the rest of the step. Errors: as
  /// Optimizer::update_up_to.
  Result<void> accumulated(std::size_t stage) noexcept;
  /// True if the step under way has begun its update, and cannot take it back.
  bool begun() const noexcept { return optimizer_.under_backward() && !optimizer_.speculative(); }
  /// Takes the step's update back, as far as it has begun one that may be. Errors: as accumulated.
  Result<void> take_back() noexcept;
  /// The step is given up: takes back what may be, and gives back what was borrowed to read ahead.
  /// Errors: as accumulated.
  Result<void> abandon() noexcept;
  /// The backward was not the step's last one, or somebody wants what was there before the update:
  /// the same, and the next step does not try. Errors: as accumulated.
  Result<void> give_up() noexcept;
  /// All gradients are known; `as_begun`: the step is updated with the constants of begin(). If
  /// not, takes that back. `skipped`: it is not updated. Errors: as accumulated.
  Result<void> judged(bool as_begun, bool skipped) noexcept;

 private:
  ModelState& state_;
  const std::vector<StageSpec>& stages_;
  Gradients& gradients_;
  Optimizer& optimizer_;
  const bool hooked_;
  const bool speculative_;
  const double clipping_;  // clip.h
  bool undecided_ = false;
  bool stopped_ = false;
  bool given_up_ = false;         // what was begun for this step
  double sum_squares_ = 0.0;      // of gradients that are final
  double sum_squares_max_ = 0.0;  // that are not clipped
  std::vector<bool> units_;
  std::vector<std::vector<std::uint32_t>> by_stage_;  // these of final_after_stage
  GradientOrder gradient_order_;
};

}  // namespace artesian::zero3
