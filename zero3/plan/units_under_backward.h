// The update under backward: a unit is updated once its own gradient is final, while the units
// below it are still in backward. The others are left to the next forward as ever
// (step/under_backward.h), so that the disk works under both. These functions say which units that
// are. Pure.
//
// Note [Speculation]: mostly an update waits for the step's last gradient: their norm may clip it,
// and one that is not finite takes the step back. Then it is made as if neither were the case, and
// taken back where it was: optimizer state is written to a shadow of its place on NVMe, which
// becomes its place only when the norm is known. Of state in host memory, beside a separate device,
// what it was is kept in host memory that nothing else takes, and put back. It is tried after a
// step that had not to be taken back, and given up for the step as soon as the norm of the
// gradients so far is too large. The bits are those of an update that waited.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/config/config.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {

/// True if the update depends on all gradients: a clip factor comes of their norm, an overflow in
/// any of them takes the step back, or moves the loss scale.
bool waits_for_norm(const Config& config) noexcept;

/// True if some of it may be made before they are known: it does not depend on them, or may be
/// taken back: Note [Speculation].
bool may_update_under_backward(const Config& config) noexcept;

/// [stages] the units whose gradients are final after that stage's backward, the last of a step: in
/// backward each is met last where forward meets it first. A looked-up table is nowhere among them:
/// its rows come last.
std::vector<std::vector<std::uint32_t>> last_in_backward(const Layout& layout,
                                                         const std::vector<StageSpec>& stages);

/// The units of all stages in the order in which their gradients become final. Shape: by_stage: as
/// last_in_backward.
std::vector<std::uint32_t> final_order(const std::vector<std::vector<std::uint32_t>>& by_stage);

/// By unit: its gradient is final before backward ends, of whichever placement.
std::vector<bool> final_early(const Layout& layout, const std::vector<StageSpec>& stages);

/// Returns what of last_in_backward the compute team updates: nothing on a separate device. Nothing
/// where some unit's gradients spill: under backward the ring is theirs.
std::vector<std::vector<std::uint32_t>> final_after_stage(const Placement& placement,
                                                          const std::vector<StageSpec>& stages);

/// Bytes of what a unit that is updated ahead of the norm was, where they are kept in host memory:
/// of one all of whose optimizer state is there, beside a separate device. 0: of any other.
std::uint64_t old_state_bytes(const Placement& placement, std::uint32_t unit);
/// The same of the units that have room for them, in the order in which they become final, each
/// that still fits: what such a placement keeps, with `room` bytes of host memory left.
std::uint64_t old_state_within(const Placement& placement, const std::vector<StageSpec>& stages,
                               std::uint64_t room);

/// Seconds of a step without update under backward.
struct UpdateTimes {
  double forward = 0.0;       // computed in the first group of micro-batches
  double backward = 0.0;      // seconds of the step's last backward
  double forward_disk = 0.0;  // disk seconds in these, without the update's
  double backward_disk = 0.0;
  double update = 0.0;       // computed by all of the update, by those who compute the model
  double update_disk = 0.0;  // disk seconds of the whole update
  // Of the host's cores beside a separate device, which have nothing else to do:
  double update_host = 0.0;    // for all of the update
  double backward_host = 0.0;  // for gradients, in backward
};

/// Figures of a step whose update is all left to the next forward: measured by the engine, or
/// simulated. Seconds.
struct StepFigure {
  double forward = 0.0;      // computed, in all
  double backward = 0.0;     // seconds of all backward passes
  double disk = 0.0;         // disk seconds in all
  double update_disk = 0.0;  // of these, the update's
  double update = 0.0;       // computed by the update, by whoever computes it
  double gradients = 0.0;    // host seconds for gradients in backward
};

/// `part`: a group's share of the step's micro-batches. `separate`: the host updates, beside a
/// separate device that computes. The disk's other work is in forward and backward alike.
UpdateTimes update_times(const StepFigure& step, double part, bool separate) noexcept;

/// The share of the update that backward takes, 0 to 1: that with which the disk, or the host's
/// cores beside a separate device if they take longer, are as busy under backward as they are under
/// forward, whatever their speed turns out to be; but no more than backward has time for, since
/// what is updated there is read again for the next forward.
double share_under_backward(const UpdateTimes& times) noexcept;

/// By unit, whether it is updated under backward: that share of the bytes that the update moves on
/// NVMe, as near as units allow, spread evenly over those that may be, so that the disk has some of
/// the update to do at any time of forward and of backward. Beside a separate device that share of
/// all optimizer state, wherever it is, as the host's cores are to have some, too. `speculative`:
/// it may be taken back, which needs all of a unit's optimizer state on NVMe, and room in the ring
/// for what its parameters were; or room for old_state_bytes().
std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share,
                                       bool speculative);

/// True if there are any, if the share is large enough.
bool may_update_under_backward(const Config& config, const Placement& placement,
                               const std::vector<StageSpec>& stages);

/// Returns the bytes moved in addition so that this unit's update can be rolled back, and the space
/// on NVMe that these units need for that.
Moved saved_moves(const Placement& placement, std::uint32_t unit);
std::uint64_t shadow_bytes(const Placement& placement, const std::vector<bool>& units);

}  // namespace artesian::zero3
