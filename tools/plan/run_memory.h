// Checks whether a run's memory is available: compares the planned memory with what the machine and
// the control groups have left.
#pragma once

#include "base/result.h"
#include "tools/train/train.h"

namespace artesian::tools {

/// Compares tiers, activations and program with the memory left. Logs a warning if the sum is close
/// to it, or if the budgets alone exceed it. Errors: Exhausted, with the missing bytes and the key
/// to change, if the run cannot fit.
Result<void> check_run_memory(const RunMemory& run);

/// The dtype in which a run of this config computes, on a GPU or on this machine's CPU. Errors:
/// Invalid.
Result<DType> run_compute_dtype(const zero3::Config& config, bool gpu);

}  // namespace artesian::tools
