// The one function that launches kernels. It is an ordinary call, so that plain C++ compilers can
// read the .cu files (tests/support/cuda_on_host). And it returns the status of this launch,
// whereas <<< >>> leaves the thread's last error, which an earlier call may have caused.
#pragma once

#include <cuda_runtime.h>

#include "base/result.h"
#include "kernels/cuda_error.h"

namespace artesian::kernels::cuda {

/// Enqueues `kernel` on `stream` with this many blocks of `threads` threads each. Errors: Io.
template <typename... Parameters, typename... Arguments>
Result<void> launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                    cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = stream;
  return from_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "launching a kernel");
}

}  // namespace artesian::kernels::cuda
