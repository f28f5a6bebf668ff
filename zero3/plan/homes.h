// Homes: the first pass of a placement (draft.h). It makes the model's layout and gives each unit's
// state the home that the configuration asks for, regardless of budgets.
#pragma once

#include <cstdint>

#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

/// Makes the layout with at most `persistent_max` persistent elements; decides neither homes of
/// sub-groups nor buffers.
Placement assign_homes(const PlacementRequest& request, std::uint64_t persistent_max);

/// True if the host makes all updates although there is a separate device: with several ranks all
/// gradients pass through host memory, and the device's kernels support neither measuring passes
/// nor matrices nor 16-bit moments.
bool host_updates_all(const PlacementRequest& request) noexcept;

/// Elements of the persistent units.
std::uint64_t persistent_numel(const Layout& layout) noexcept;

/// Returns `place` with the unit's parameters moved to the device. Its routes are not updated:
/// with_routes() does that for all units together.
UnitPlacement with_param_on_device(const PlacementRequest& request, UnitPlacement place);

/// Returns the unit with all of its state on the separate device, which updates it; its parameters
/// are there already. Routes: as above.
UnitPlacement with_update_on_device(const PlacementRequest& request, UnitPlacement place);

}  // namespace artesian::zero3
