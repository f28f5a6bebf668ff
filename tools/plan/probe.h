// What this machine's CPU does in a second, measured on the work of a training step itself: one
// block and the head of the model, forward and backward, by LibTorch; and the optimizer's kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "models/model_config.h"
#include "tools/plan/planner.h"

namespace artesian::tools {

struct ProbedCompute {
  ModelSeconds seconds;  // for each token
  double tflops = 0.0;
  bool by_product = false;  // one matrix product stands for all: the stages are too large to try
};

/// Runs a block and the head on a micro-batch of `samples` of `length` tokens, or on fewer samples
/// if that takes long; tiled parameters stay in their stored dtype. Errors: Exhausted, Invalid
/// (LibTorch).
Result<ProbedCompute> probe_compute(const models::ModelConfig& config, DType dtype, DType stored,
                                    std::uint64_t samples, std::uint64_t length);

struct ProbedMemory {  // bytes per second, by all threads
  double kernels = 0.0;
  double checksum = 0.0;  // checksums of bytes that are in the caches
};

/// Measures the optimizer's update, slice by slice, with checksums and without; in at most 480 MiB
/// and an eighth of what is free, which it says in the log.
ProbedMemory probe_memory();

}  // namespace artesian::tools
