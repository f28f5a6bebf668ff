// StepBytes: what a step moves to and from NVMe, to the byte, as a function of the placement alone.
// Every transfer is whole sub-groups, whose lengths are multiples of 4 KiB; nothing is rounded
// further. What forward and backward fetch of the parameters is not counted here.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/placement.h"

namespace artesian::zero3 {

struct StepBytes {
  std::uint64_t read = 0;
  std::uint64_t written = 0;

  bool operator==(const StepBytes&) const = default;
};

/// Of the optimizer's update: its state, the gradients that it reads, the parameters that it writes
/// (in fp32 they are read, too). A skipped step moves none of this.
StepBytes optimizer_bytes(const Placement& placement);

/// Of gradients before the update: accumulating those of `micro_batches`, and the norm. Exact if
/// the ids of a step reach each sub-group of the looked-up table, else what is not reached is read
/// and written once less.
StepBytes gradient_bytes(const Placement& placement, const std::vector<StageSpec>& stages,
                         std::uint64_t micro_batches);

}  // namespace artesian::zero3
