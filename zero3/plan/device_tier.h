// The device tier: the second pass of a placement (draft.h). What its budget has room for beside
// the slots of the stage that needs most gets its home there.
#pragma once

#include <cstdint>
#include <string>

#include "zero3/plan/draft.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

struct DeviceNeed {         // bytes
  std::uint64_t fixed = 0;  // homes and persistent slots
  std::uint64_t stage = 0;  // slots of the stage that needs most
  std::uint64_t next = 0;   // and of the largest stage that can be beside it
  std::uint64_t all = 0;    // slots of all units
  std::string largest_stage;
};

/// Homes, persistence cut to the budget, gradients and buffers of the device; the pool as large as
/// it can become. Errors: Exhausted.
Result<Draft> place_in_device(const PlacementRequest& request);

/// Sizes the pool once all homes are known: parameters that host memory keeps and compute reads
/// there take no slots, and what optimizer state leaves is for slots again.
Draft with_device_pool(const PlacementRequest& request, Draft draft);

}  // namespace artesian::zero3
