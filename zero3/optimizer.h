// The optimizer over tiered state: initial values, the Adam step, and reading state back (digest,
// export). Sub-groups stream through the staging ring; the work runs on the compute team. Units of
// a separate device that have all of their state there are updated by it, in place.
//
// A step is deferred: begin_step fixes what it does, and each unit is updated when somebody comes
// to it, in the order in which the next forward does. Until then its gradient must stay, and its
// parameters and state are last step's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/adam.h"
#include "tiering/residency.h"
#include "zero3/sub_group_stream.h"
#include "zero3/weights.h"

namespace artesian::zero3 {

class Optimizer {
 public:
  /// The state and the residency must outlive it.
  Optimizer(ModelState& state, tiering::Residency& residency);

  /// Fills master weights and parameters from `weights`, moments with zero, straight into their
  /// homes; `progress(done, total)` in elements. Errors: the source's, Io, NoSpace, Timeout.
  Result<void> initialize(
      WeightSource& weights,
      const std::function<void(std::uint64_t, std::uint64_t)>& progress) noexcept;
  /// Begins one update of every unit from its accumulated gradient: starts the first reads, and
  /// updates what a separate device updates by itself. Gathered parameters follow, and those that
  /// are gathered from here on. Errors: Io, Timeout.
  Result<void> begin_step(const kernels::AdamStep& constants) noexcept;
  /// Updates a unit and those before it, where that is still to come. Errors: Io, Corrupt, NoSpace,
  /// Timeout.
  Result<void> update_up_to(std::uint32_t unit) noexcept;
  /// Updates what is next and needs no waiting for the disk, but only units whose slots are there
  /// to be filled: so it moves no byte more or less. Errors: as update_up_to.
  Result<void> update_ahead() noexcept;
  /// Whether that would do anything now.
  bool may_update_ahead() const noexcept;
  /// Updates the rest; afterwards nothing is in flight. Errors: as update_up_to.
  Result<void> finish_step() noexcept;
  bool step_under_way() const noexcept { return under_way_; }
  /// XXH3-128 over names, master weights and both moments, in parameter order: the same for every
  /// placement. Errors: Io, Corrupt, Timeout.
  Result<std::string> digest(const std::vector<ParameterSpec>& parameters) noexcept;
  /// Calls `sink` with the parameter's master weights (fp32) in row-major order, in pieces.
  Result<void> read_master(
      std::uint32_t parameter,
      const std::function<Result<void>(std::span<const float>)>& sink) noexcept;

  double wait_seconds() const noexcept { return stream_.wait_seconds(); }

 private:
  Result<void> fill(const SubGroup& group, WeightSource& weights) noexcept;
  Result<void> fill_slice(const SubGroup& group, WeightSource& weights, std::uint64_t begin,
                          std::uint64_t end) noexcept;
  kernels::AdamArrays arrays_of(const SubGroup& group, std::uint64_t begin) const noexcept;
  Result<void> update(const SubGroup& group, const kernels::AdamStep& constants) noexcept;
  Result<void> update_on_device(std::uint32_t unit, const kernels::AdamStep& constants) noexcept;

  ModelState& state_;
  tiering::Residency& residency_;
  SubGroupStream stream_;
  std::vector<std::uint32_t> all_units_;       // in order of first use
  std::vector<std::uint32_t> streamed_units_;  // of these, updated by the compute team
  std::size_t updated_ = 0;                    // of streamed_units_, in the step under way
  bool under_way_ = false;
};

}  // namespace artesian::zero3
