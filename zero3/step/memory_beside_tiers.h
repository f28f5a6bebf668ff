#pragma once

#include <cstdint>

namespace artesian::zero3 {

/// Peak bytes by use so far, beside the tiers' pools. On a CPU these and both pools add up to the
/// process's peak resident memory, except for free memory held by malloc, partly used huge pages of
/// tensors, and thread stacks.
struct MemoryBesideTiers {
  std::uint64_t activations = 0;  // memory held by the driver on the computing device
  std::uint64_t program = 0;  // code, data, and memory that was resident before the first tensor
  std::uint64_t heap = 0;     // other resident allocations: tables, matrix packing
};

}  // namespace artesian::zero3
