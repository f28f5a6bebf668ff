// Prediction: how long the next step will take, from the phases of this one. A phase is a part of a
// step that ends with its transfers done, so that nothing of one phase hides under another: the
// forward that carries an update is one, what follows up to step() another. Pure: no clock, no
// disk, and nothing that a run computes depends on it.
#pragma once

#include <cstdint>
#include <limits>

#include "tiering/tier_store.h"

namespace artesian::zero3 {

/// Seconds that a disk needs at least for these bytes; reads and writes share it.
double disk_seconds(const tiering::DiskSpeed& disk, const tiering::PathBytes& bytes);

/// What was measured of one phase.
struct PhaseUse {
  double seconds = 0.0;
  double waited_s = 0.0;  // of these, for transfers
  tiering::PathBytes bytes{};
};

class Prediction {
 public:
  Prediction() = default;
  explicit Prediction(const tiering::DiskSpeed& disk) : disk_(disk) {}

  /// `carries_update`: it completes the update that the step before it has begun.
  void begin_step(bool carries_update);
  void end_phase(const PhaseUse& use);
  /// After the last phase. `update`: what an update moves, which the next step will carry though
  /// this one did not.
  void end_step(const tiering::PathBytes& update);

  /// Seconds of the step after the last that ended; not finite before there was one.
  double next_s() const noexcept { return next_s_; }
  /// Of the step under way, up to now: its phases without their waits,
  double computed_s() const noexcept { return computed_s_; }
  /// and what the disk needs for what they moved.
  double disk_s() const noexcept { return disk_s_; }

 private:
  tiering::DiskSpeed disk_;
  bool carries_update_ = false;
  double so_far_s_ = 0.0;  // of the next step, from the phases of this one
  double computed_s_ = 0.0;
  double disk_s_ = 0.0;
  double next_s_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace artesian::zero3
