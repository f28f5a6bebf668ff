// Homes: the first pass of a placement (draft.h). It lays the model out and gives each unit's state
// the homes that the configuration asks for, whatever the budgets are.
#pragma once

#include <cstdint>

#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

/// Lays the model out with at most `persistent_max` persistent elements. Without homes of
/// sub-groups, and without buffers.
Placement assign_homes(const PlacementRequest& request, std::uint64_t persistent_max);

/// True if nothing is updated on the separate device, which is there, whatever its memory holds:
/// between ranks all goes through host memory, and a device's kernels know neither measured steps
/// nor matrices nor moments in 16 bit.
bool host_updates_all(const PlacementRequest& request) noexcept;

/// Elements of the units that persist.
std::uint64_t persistent_numel(const Layout& layout) noexcept;

/// The unit with its parameters on the device, `place` as it was before. Its routes are those of
/// before, too: with_routes() is for all units together.
UnitPlacement with_param_on_device(const PlacementRequest& request, UnitPlacement place);

/// The unit with all of its state on a separate device, which updates it; its parameters are there.
/// Routes: as above.
UnitPlacement with_update_on_device(const PlacementRequest& request, UnitPlacement place);

}  // namespace artesian::zero3
