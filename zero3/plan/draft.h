// Draft: a placement in the making. Pure functions make it, one after the other; each takes what
// the ones before it have made, and returns it with its own decisions:
//
//   homes.h         the layout, and the homes that the configuration asks for
//   device_tier.h   what fits in the device tier, and what else is there in spare memory
//   host_buffers.h  the ring and the staging of the host tier
//   host_tier.h     the host tier: these buffers, and residents in the rest (candidates.h lists
//                   what could be one, residents.h chooses)
//
// make_placement.cpp runs them, for several requests, and takes what moves the fewest bytes.
// placement_notes.h says to the user what they have decided.
#pragma once

#include <cstdint>
#include <utility>

#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// Measures what residents leave a step to do, the less the better: whether gradients spill, then
/// bytes to and from NVMe.
using Cost = std::pair<bool, std::uint64_t>;

struct Draft {
  Placement placement;
  // Of the device tier's budget, bytes:
  std::uint64_t device_room = 0;   // for homes and slots
  std::uint64_t device_spare = 0;  // part of it for optimizer state
  bool device_full = false;        // it cannot hold all parameters that might live there
  bool persistence_cut = false;    // fewer elements persist than the configuration allows
  Cost cost{};
};

}  // namespace artesian::zero3
