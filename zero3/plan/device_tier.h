// The device tier: the second pass of a placement (draft.h). State that fits in its budget, beside
// the slots of the stage that needs the most, gets its home there.
#pragma once

#include <cstdint>
#include <string>

#include "zero3/plan/draft.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

struct DeviceNeed {         // needs of the device tier, bytes
  std::uint64_t fixed = 0;  // homes and persistent slots
  std::uint64_t stage = 0;  // slots of the stage that needs the most
  std::uint64_t next = 0;   // slots of the largest stage that can be prefetched beside it
  std::uint64_t all = 0;    // slots of all units
  std::string largest_stage;
};

/// Decides the device's homes, gradients and buffers, and cuts persistence to the budget; the pool
/// gets its largest possible size. Errors: Exhausted.
Result<Draft> place_in_device(const PlacementRequest& request);

/// Sizes the pool once all homes are known: parameters that compute reads in host memory need no
/// slots, and memory not used by optimizer state is available for slots again.
Draft with_device_pool(const PlacementRequest& request, Draft draft);

}  // namespace artesian::zero3
