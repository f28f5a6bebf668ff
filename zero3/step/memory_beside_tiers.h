#pragma once

#include <cstdint>

namespace artesian::zero3 {

/// The most bytes of each so far, beside the tiers' pools. On a CPU they add up, with both pools,
/// to the process's peak resident memory, but for what malloc keeps free, huge pages that tensors
/// use in part, and thread stacks.
struct MemoryBesideTiers {
  std::uint64_t activations = 0;  // what the driver holds on the device that it computes on
  std::uint64_t program = 0;      // code, data, and what was resident before the first tensor
  std::uint64_t heap = 0;         // other allocations, where resident: tables, matrix packing
};

}  // namespace artesian::zero3
