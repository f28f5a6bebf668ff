// The update under backward: a unit is updated once its own gradient is final, while the units
// below it are still in backward. The others are left to the next forward as ever
// (Optimizer::begin_step), so that the disk works under both. Which units that are is said by pure
// functions.
//
// Note [Speculation]: mostly an update waits for the step's last gradient: their norm may clip it,
// and one that is not finite takes the step back. Then it is made as if neither were the case, and
// taken back where it was: optimizer state is written to a shadow of its place on NVMe, which
// becomes its place only when the norm is known. It is tried after a step that had not to be taken
// back, and given up for the step as soon as the norm of the gradients so far is too large. The
// bits are those of an update that waited.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "zero3/gradients.h"
#include "zero3/optimizer.h"
#include "zero3/step_plan.h"

namespace artesian::zero3 {

/// Whether the update depends on all gradients: a clip factor comes of their norm, an overflow in
/// any of them takes the step back, or moves the loss scale.
bool waits_for_norm(const Config& config) noexcept;

/// Whether some of it may be made before they are known: it does not depend on them, or may be
/// taken back: Note [Speculation].
bool may_update_under_backward(const Config& config) noexcept;

/// [stages] the units whose gradients are final after that stage's backward, the last of a step: in
/// backward each is met last where forward meets it first. A looked-up table is nowhere among them:
/// its rows come last.
std::vector<std::vector<std::uint32_t>> last_in_backward(const Layout& layout,
                                                         const std::vector<StageSpec>& stages);

/// By unit: its gradient is final before backward ends, of whichever placement.
std::vector<bool> final_early(const Layout& layout, const std::vector<StageSpec>& stages);

/// What of last_in_backward the compute team updates: nothing on a separate device. Nothing where
/// some unit's gradients spill: under backward the ring is theirs.
std::vector<std::vector<std::uint32_t>> final_after_stage(const Placement& placement,
                                                          const std::vector<StageSpec>& stages);

/// Seconds of a step without update under backward.
struct UpdateTimes {
  double forward = 0.0;       // computed in the first group of micro-batches
  double backward = 0.0;      // and in the last
  double forward_disk = 0.0;  // of the disk in these, for other things than the update
  double backward_disk = 0.0;
  double update = 0.0;       // computed by all of the update
  double update_disk = 0.0;  // of the disk for all of it
};

/// The share of the update that backward takes, 0 to 1: that with which the disk is as busy under
/// backward as it is under forward, whatever its speed turns out to be; but no more than backward
/// has time for, since what is updated there is read again for the next forward.
double share_under_backward(const UpdateTimes& times) noexcept;

/// By unit, whether it is updated under backward: that share of the bytes that the update moves on
/// NVMe, as near as units allow, spread evenly over those that may be, so that the disk has some of
/// the update to do at any time of forward and of backward. `speculative`: it may be taken back,
/// which needs all of a unit's optimizer state on NVMe, and room in the ring for what its
/// parameters were.
std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share,
                                       bool speculative);

/// Whether there are any, if the share is large enough.
bool may_update_under_backward(const Config& config, const Placement& placement,
                               const std::vector<StageSpec>& stages);

/// What it moves besides, of such a unit, so that it may be taken back; and the room that this
/// takes on NVMe, of these units.
Moved saved_moves(const Placement& placement, std::uint32_t unit);
std::uint64_t shadow_bytes(const Placement& placement, const std::vector<bool>& units);

/// Runs it, in steps of an engine. Thread: the compute thread.
class UnderBackward {
 public:
  /// All must outlive it.
  UnderBackward(const Config& config, ModelState& state, const std::vector<StageSpec>& stages,
                Gradients& gradients, Optimizer& optimizer);

  /// It is allowed, there is something to update so, and the share is still to be chosen.
  bool undecided() const noexcept { return undecided_; }
  /// Where the disk has no room for what may be taken back, it is none, with a line in the log.
  /// Errors: Io.
  Result<void> decide(double share) noexcept;
  /// By unit: it is updated under backward.
  const std::vector<bool>& units() const noexcept { return units_; }
  std::ptrdiff_t count() const noexcept { return std::count(units_.begin(), units_.end(), true); }
  /// The last backward of the step begins, and all losses are finite. Where nothing is updated
  /// under it, what comes first afterwards is read. The constants are those of gradients of this
  /// loss scale that are not clipped. Errors: Io, Timeout.
  Result<void> begin(const kernels::AdamStep& constants, double loss_scale) noexcept;
  /// What is added to a stage's gradients was added: updates units that need no waiting. A gradient
  /// that is not finite, or too large, stops that for the rest of the step. Errors: as
  /// Optimizer::update_up_to.
  Result<void> accumulated(std::size_t stage) noexcept;
  /// Whether the step under way has begun its update, and cannot take it back.
  bool begun() const noexcept { return optimizer_.under_backward() && !optimizer_.speculative(); }
  /// Takes the step's update back, as far as it has begun one that may be. Errors: as accumulated.
  Result<void> take_back() noexcept;
  /// All gradients are known; `as_begun`: the step is updated with the constants of begin(). If
  /// not, takes that back. `skipped`: it is not updated. Errors: as accumulated.
  Result<void> judged(bool as_begun, bool skipped) noexcept;

 private:
  ModelState& state_;
  const std::vector<StageSpec>& stages_;
  Gradients& gradients_;
  Optimizer& optimizer_;
  const bool speculative_;
  const double norm_max_;  // above which gradients are clipped
  bool undecided_ = false;
  bool expected_ = true;  // of a step: not to be taken back
  bool stopped_ = false;
  double sum_squares_ = 0.0;      // of gradients that are final
  double sum_squares_max_ = 0.0;  // that are not clipped
  std::vector<bool> units_;
  std::vector<std::vector<std::uint32_t>> by_stage_;  // these of final_after_stage
};

}  // namespace artesian::zero3
