// Whether the memory that a run takes can be had: what a plan says of it, held against what the
// machine and the control groups have left.
#pragma once

#include "base/result.h"
#include "tools/train/train.h"

namespace artesian::tools {

/// Tiers, activations and the program against what is left. Warns in the log where the sum is close
/// to it, and where the budgets alone are above it. Errors: Exhausted, with the bytes missing and
/// the key to change: it cannot fit.
Result<void> check_run_memory(const RunMemory& run);

/// The dtype that a run of this config computes in, on a GPU or on this machine's CPU. Errors:
/// Invalid.
Result<DType> run_compute_dtype(const zero3::Config& config, bool gpu);

}  // namespace artesian::tools
