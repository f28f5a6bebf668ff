// The one way to launch a kernel. An ordinary call, so that compilers of plain C++ can read the
// .cu files (tests/support/cuda_on_host); and its status is of this launch, where that of <<< >>>
// is the last error of the thread, whoever made it.
#pragma once

#include <cuda_runtime.h>

#include "base/result.h"
#include "kernels/cuda_error.h"

namespace artesian::kernels::cuda {

/// Enqueues `kernel` on `stream`, in so many blocks, of `threads` each. Errors: Io.
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
