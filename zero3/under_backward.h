// The update under backward: where nothing about it waits for the step's last gradient, a unit is
// updated once its own gradient is final, while the units below it are still in backward. The
// others are left to the next forward as ever (Optimizer::begin_step), so that the disk works under
// both. Which units that are is said by pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "zero3/gradients.h"
#include "zero3/optimizer.h"

namespace artesian::zero3 {

/// Whether it keeps the bits: no clip factor comes of the norm of all gradients, no overflow in any
/// of them takes the step back, and there is no loss scale that moves.
bool may_update_under_backward(const Config& config) noexcept;

/// By unit: its gradient is final before backward ends, of whichever placement.
std::vector<bool> final_early(const Layout& layout, const std::vector<StageSpec>& stages);

/// [stages] the units whose gradients are final after that stage's backward, as far as the compute
/// team updates them: not on a separate device. A looked-up table is not among them: its rows come
/// last. None where some unit's gradients spill: under backward the ring is theirs.
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
/// the update to do at any time of forward and of backward.
std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share);

/// Runs it, in steps of an engine. Thread: the compute thread.
class UnderBackward {
 public:
  /// `share`: of the update; without one it waits for decide(). All must outlive it.
  UnderBackward(const Config& config, const ModelState& state, const std::vector<StageSpec>& stages,
                Gradients& gradients, Optimizer& optimizer, std::optional<double> share);

  /// It is allowed, there is something to update so, and the share is still to be chosen.
  bool undecided() const noexcept { return undecided_; }
  void decide(double share);
  /// By unit: it is updated under backward.
  const std::vector<bool>& units() const noexcept { return units_; }
  std::ptrdiff_t count() const noexcept { return std::count(units_.begin(), units_.end(), true); }
  /// The last backward of the step begins, and all losses are finite. Where nothing is updated
  /// under it, what comes first afterwards is read. Errors: Io, Timeout.
  Result<void> begin(const kernels::AdamStep& constants) noexcept;
  /// What is added to a stage's gradients was added: updates units that need no waiting. A gradient
  /// that is not finite stops that for the rest of the step. Errors: as Optimizer::update_up_to.
  Result<void> accumulated(std::size_t stage) noexcept;
  /// Whether the step under way has begun its update.
  bool begun() const noexcept { return optimizer_.under_backward(); }

 private:
  const ModelState& state_;
  const std::vector<StageSpec>& stages_;
  Gradients& gradients_;
  Optimizer& optimizer_;
  bool undecided_ = false;
  bool stopped_ = false;
  std::vector<bool> units_;
  std::vector<std::vector<std::uint32_t>> by_stage_;  // these of final_after_stage
};

}  // namespace artesian::zero3
