// Measures the speed of this machine's CPU on the work of a training step: one block and the head
// of the model, forward and backward, by LibTorch; and the optimizer's kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "models/model_config.h"
#include "tools/plan/planner.h"

namespace artesian::tools {

struct ProbedCompute {
  ModelSeconds seconds;  // per token
  double tflops = 0.0;
  bool by_product = false;  // one matrix product represents all, as the stages are too large to run
};

/// Runs a block and the head on a micro-batch of `samples` of `length` tokens, or on fewer samples
/// if that takes too long; tiled parameters keep their stored dtype. Errors: Exhausted, Invalid
/// (LibTorch).
Result<ProbedCompute> probe_compute(const models::ModelConfig& config, DType dtype, DType stored,
                                    std::uint64_t samples, std::uint64_t length);

struct ProbedMemory {  // bytes per second, by all threads
  double kernels = 0.0;
  double checksum = 0.0;  // checksums of bytes in the caches
};

/// Measures the optimizer's update, slice by slice, with and without checksums, in at most 480 MiB
/// and an eighth of the free memory, and logs the size used.
ProbedMemory probe_memory();

}  // namespace artesian::tools
