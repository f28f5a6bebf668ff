// Prediction: how long the next step will take, from the phases of this one. A phase is a part of a
// step at whose end all transfers are done, so that phases do not overlap: the forward that carries
// an update is one phase, the rest up to step() another. Disk times use the probed speed until
// measured phases give a better one (disk_rate.h). Phases with and without an update are measured
// separately; each stands in for the other as long as that has no figure. Time beyond computing and
// disk, mostly waits at a phase's beginning, is expected again once it has occurred twice. Pure: no
// clock, no disk; results of a run do not depend on it.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "tiering/disk/stripe.h"
#include "zero3/plan/disk_rate.h"
#include "zero3/plan/last_values.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {

/// Seconds until the slowest disk has moved the bytes of its folders. Reads and writes share a
/// disk, as do folders of one device; disks work in parallel. Disks of unknown speed count as 0
/// seconds. Shape: both [folders].
double disk_seconds(std::span<const tiering::PathDisk> disks,
                    std::span<const tiering::PathBytes> bytes);

/// Returns the bytes of each of this many folders: the optimizer's records are divided by their
/// shares, all other bytes by the parameters' shares. Shares are empty if nothing is on NVMe.
std::vector<tiering::PathBytes> divide_over_paths(const MovedByKind& moved,
                                                  std::span<const tiering::PathShare> param,
                                                  std::span<const tiering::PathShare> optimizer,
                                                  std::size_t paths);

/// Measured figures of one phase.
struct PhaseUse {
  bool updates = false;  // the phase completes an update
  double seconds = 0.0;
  double waited_s = 0.0;                    // part of these: seconds of waiting for transfers
  std::vector<tiering::PathBytes> bytes{};  // [folders]
};

class Prediction {
 public:
  Prediction() = default;
  explicit Prediction(std::vector<tiering::PathDisk> disks) : disks_(std::move(disks)) {}

  /// `carries_update`: the step completes the update begun by the previous step.
  void begin_step(bool carries_update);
  void end_phase(const PhaseUse& use);
  /// Call after the last phase. `update`: bytes moved by an update, which the next step will carry
  /// even if this one did not.
  void end_step(std::span<const tiering::PathBytes> update);

  /// Predicted seconds of the step after the last finished one; not finite before the first.
  double next_s() const noexcept { return next_s_; }
  /// For the current step so far: seconds of its phases without their waits,
  double computed_s() const noexcept { return computed_s_; }
  /// Seconds that the disks need for the step's bytes at probed rates.
  double disk_s() const noexcept { return disk_s_; }

 private:
  struct Kind {  // figures for one kind of phase
    DiskRate rate;
    LastValues<3> beyond;  // seconds that neither computing nor disk time explains
  };
  double expected_seconds(bool updates, double probed_s) const;

  std::vector<tiering::PathDisk> disks_;
  Kind with_update_;  // phases that complete an update
  Kind without_;
  bool carries_update_ = false;
  double so_far_s_ = 0.0;  // predicted seconds of the next step, from this step's phases so far
  double computed_s_ = 0.0;
  double disk_s_ = 0.0;
  double next_s_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace artesian::zero3
