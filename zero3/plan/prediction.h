// Prediction: how long the next step will take, from the phases of this one. A phase is a part of a
// step that ends with its transfers done, so that nothing of one phase hides under another: the
// forward that carries an update is one, what follows up to step() another. What bytes take goes by
// the disks' speed as it was probed, until phases have told better (disk_rate.h): those that
// complete an update about those, the others about the others, and either about both while the
// other kind has told nothing. What such a phase takes beyond both, mostly waits at its beginning
// that nothing can hide, is expected again once it has come back. Pure: no clock, no disk, and
// nothing that a run computes depends on it.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "tiering/disk/stripe.h"
#include "zero3/plan/disk_rate.h"
#include "zero3/plan/last_values.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {

/// Seconds until the last disk has moved the bytes of its folders. Reads and writes share a disk,
/// as do folders of one device; disks work side by side. A speed that is not known counts for
/// nothing. Shape: both [folders].
double disk_seconds(std::span<const tiering::PathDisk> disks,
                    std::span<const tiering::PathBytes> bytes);

/// Returns what each of so many folders gets to move: the optimizer's records go where their shares
/// say, all else where those of parameters do. Shares are empty where nothing is on NVMe.
std::vector<tiering::PathBytes> divide_over_paths(const MovedByKind& moved,
                                                  std::span<const tiering::PathShare> param,
                                                  std::span<const tiering::PathShare> optimizer,
                                                  std::size_t paths);

/// The figures that were measured of one phase.
struct PhaseUse {
  bool updates = false;  // the phase completes an update
  double seconds = 0.0;
  double waited_s = 0.0;                    // of these, seconds of waiting for transfers
  std::vector<tiering::PathBytes> bytes{};  // [folders]
};

class Prediction {
 public:
  Prediction() = default;
  explicit Prediction(std::vector<tiering::PathDisk> disks) : disks_(std::move(disks)) {}

  /// `carries_update`: it completes the update that the step before it has begun.
  void begin_step(bool carries_update);
  void end_phase(const PhaseUse& use);
  /// After the last phase. `update`: what an update moves, which the next step will carry though
  /// this one did not.
  void end_step(std::span<const tiering::PathBytes> update);

  /// Seconds of the step after the last that ended; not finite before there was one.
  double next_s() const noexcept { return next_s_; }
  /// The step under way, up to now: its phases without their waits,
  double computed_s() const noexcept { return computed_s_; }
  /// Seconds that the disks need for the step's bytes at probed rates.
  double disk_s() const noexcept { return disk_s_; }

 private:
  struct Kind {  // one kind of phases
    DiskRate rate;
    LastValues<3> beyond;  // seconds that neither computing nor their bytes explain
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
