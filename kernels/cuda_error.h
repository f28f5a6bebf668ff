// Converts CUDA's errors into Results, through one macro.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/result.h"

namespace artesian::kernels::cuda {

/// The Result of a CUDA call. Out of memory becomes Exhausted, any other error Io; the message
/// contains the call, the error's name and its meaning (system_error stays 0: it is for errno).
inline Result<void> from_cuda(cudaError_t status, const char* call,
                              const char* source_file = __builtin_FILE(),
                              int source_line = __builtin_LINE()) {
  if (status == cudaSuccess) return {};
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::Exhausted : ErrorCode::Io;
  return make_error(
      code,
      std::string(call) + ": " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")",
      0, source_file, source_line);
}

}  // namespace artesian::kernels::cuda

/// ARTESIAN_TRY_CUDA(call): returns the call's error, if any, to our caller.
#define ARTESIAN_TRY_CUDA(call) \
  ARTESIAN_TRY_VOID(::artesian::kernels::cuda::from_cuda((call), #call))
