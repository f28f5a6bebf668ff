// Messages about a placement: notes on what was reduced to fit the budgets or uses spare memory,
// and errors about budgets that are too small, each with the key to change. Nothing is decided
// here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "zero3/plan/device_tier.h"
#include "zero3/plan/draft.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

/// Notes on a finished draft, one line each.
std::vector<std::string> placement_notes(const PlacementRequest& request, const Draft& draft);

/// `minimum`: bytes that the device tier must have.
Error device_error(const PlacementRequest& request, const Placement& plan, const DeviceNeed& need,
                   std::uint64_t minimum);

/// `must`: bytes that the host tier must have beside its least buffers.
Error host_error(const PlacementRequest& request, const Placement& plan, std::uint64_t must);

}  // namespace artesian::zero3
