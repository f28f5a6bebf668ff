// Draft: an unfinished placement. Pure functions build it, one after the other; each takes the
// draft of the one before and adds its own decisions:
//
//   homes.h         the layout, and the homes that the configuration asks for
//   device_tier.h   what fits in the device tier, and what uses its spare memory
//   host_buffers.h  the ring and the staging of the host tier
//   host_tier.h     the host tier: these buffers, and residents in the rest (candidates.h lists
//                   them, residents.h chooses)
//
// make_placement.cpp runs them for several requests and takes the result that moves the fewest
// bytes. placement_notes.h explains the decisions to the user.
#pragma once

#include <cstdint>
#include <utility>

#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// The cost of a step, to compare choices of residents; less is better: whether gradients spill,
/// then bytes to and from NVMe.
using Cost = std::pair<bool, std::uint64_t>;

struct Draft {
  Placement placement;
  // Parts of the device tier's budget, bytes:
  std::uint64_t device_room = 0;   // for homes and slots
  std::uint64_t device_spare = 0;  // part of it for optimizer state
  bool device_full = false;      // the device tier cannot hold all parameters that might live there
  bool persistence_cut = false;  // fewer elements persist than the configuration allows
  Cost cost{};
};

}  // namespace artesian::zero3
