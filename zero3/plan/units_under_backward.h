// The update under backward: a unit is updated once its own gradient is final, while earlier units
// are still in backward. The other units are updated in the next forward (step/under_backward.h),
// so that the disk works during both. These functions choose the units. Pure.
//
// Note [Speculation]: usually an update must wait for the step's last gradient: the norm may
// require clipping, and a gradient that is not finite skips the step. A speculative update assumes
// that neither happens, and is rolled back otherwise. On NVMe, new optimizer state is written to a
// shadow, which becomes its place only when the norm is known. With a separate device, the old
// values of state in host memory are kept in memory reserved for that, and restored. A step
// speculates if the previous step was not rolled back, and stops as soon as the norm of the
// gradients so far is too large. Results are bit-identical to those of an update that waited.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/config/config.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {

/// True if the update depends on all gradients: their norm determines a clip factor, or an overflow
/// in any of them skips the step or changes the loss scale.
bool waits_for_norm(const Config& config) noexcept;

/// True if a part of the update may be made before all gradients are known: it does not depend on
/// them, or may be rolled back: Note [Speculation].
bool may_update_under_backward(const Config& config) noexcept;

/// [stages] the units whose gradients are final after that stage's last backward in a step: the
/// stage that forward meets first is the one that backward meets last. A looked-up table is not
/// listed, as its rows are added at the very end.
std::vector<std::vector<std::uint32_t>> last_in_backward(const Layout& layout,
                                                         const std::vector<StageSpec>& stages);

/// The units of all stages in the order in which their gradients become final. Shape: by_stage: as
/// last_in_backward.
std::vector<std::uint32_t> final_order(const std::vector<std::vector<std::uint32_t>>& by_stage);

/// For each unit: whether its gradient is final before backward ends, under any placement.
std::vector<bool> final_early(const Layout& layout, const std::vector<StageSpec>& stages);

/// The part of last_in_backward that the thread pool updates: nothing on a separate device, and
/// nothing at all if some unit's gradients spill, as gradients then need the ring under backward.
std::vector<std::vector<std::uint32_t>> final_after_stage(const Placement& placement,
                                                          const std::vector<StageSpec>& stages);

/// Bytes needed in host memory for the old state of a unit that is updated before the norm is
/// known: with a separate device, for units whose optimizer state is all in host memory. 0 for
/// other units.
std::uint64_t old_state_bytes(const Placement& placement, std::uint32_t unit);
/// The sum of old_state_bytes() over the units that fit in `room` bytes of host memory, taken in
/// the order in which they become final: what such a placement reserves.
std::uint64_t old_state_within(const Placement& placement, const std::vector<StageSpec>& stages,
                               std::uint64_t room);

/// Seconds of a step that makes no update under backward.
struct UpdateTimes {
  double forward = 0.0;       // computing in the first group of micro-batches
  double backward = 0.0;      // the step's last backward
  double forward_disk = 0.0;  // disk seconds in each of these, without the update's
  double backward_disk = 0.0;
  double update = 0.0;       // computing the whole update, on the processor that computes the model
  double update_disk = 0.0;  // disk seconds of the whole update
  // For a separate device: seconds of the host's cores, which have nothing else to do:
  double update_host = 0.0;    // for the whole update
  double backward_host = 0.0;  // for gradients, in backward
};

/// Figures of a step whose update is left entirely to the next forward: measured by the engine, or
/// simulated. Seconds.
struct StepFigure {
  double forward = 0.0;      // computing in all forward passes
  double backward = 0.0;     // seconds of all backward passes
  double disk = 0.0;         // all disk seconds
  double update_disk = 0.0;  // of these, the update's
  double update = 0.0;       // computing the update, on whichever processor makes it
  double gradients = 0.0;    // host seconds for gradients in backward
};

/// `part`: a group's share of the step's micro-batches. `separate`: the host updates while a
/// separate device computes. The disk's other work is assumed to be equal in forward and backward.
UpdateTimes update_times(const StepFigure& step, double part, bool separate) noexcept;

/// The share of the update made under backward, 0 to 1. It is chosen so that the disk (or, with a
/// separate device, the host's cores if they take longer) is as busy under backward as under
/// forward, at any speed. It is limited to what fits into backward's time, since units updated
/// there are read again for the next forward.
double share_under_backward(const UpdateTimes& times) noexcept;

/// For each unit, whether it is updated under backward. The chosen units have this share of the
/// update's NVMe bytes, as nearly as whole units allow, and are spread evenly over those that
/// qualify, so that the disk has work at any time of forward and backward. With a separate device,
/// the share is that of all optimizer state in any tier, as the host's cores need work, too.
/// `speculative`: the update may be rolled back; a unit then qualifies if all of its optimizer
/// state is on NVMe and the ring has room for its old parameters, or if there is room for its
/// old_state_bytes().
std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share,
                                       bool speculative);

/// True if any units qualify, given a large enough share.
bool may_update_under_backward(const Config& config, const Placement& placement,
                               const std::vector<StageSpec>& stages);

/// Returns the additional bytes moved so that this unit's update can be rolled back; and the
/// additional NVMe space that these units need.
Moved saved_moves(const Placement& placement, std::uint32_t unit);
std::uint64_t shadow_bytes(const Placement& placement, const std::vector<bool>& units);

}  // namespace artesian::zero3
