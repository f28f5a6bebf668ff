// Registers kernels when libraries are loaded. Launches do nothing.
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/support/cuda_of_nothing/nothing.h"

namespace artesian::nothing {
namespace {

/// Names of kernels by the address of their host function.
class Names {
 public:
  void add(const void* function, const char* name) {
    const std::scoped_lock lock(mutex_);
    names_[function] = name;
  }
  std::string of(const void* function) {
    const std::scoped_lock lock(mutex_);
    const auto found = names_.find(function);
    return found == names_.end() ? "?" : found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::string> names_;
};

Names& names() {
  static auto* const made = new Names;  // libraries register before main and after its end
  return *made;
}

struct Shape {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};

/// Launches that have begun: <<<...>>> pushes one before the kernel's stub takes it.
std::vector<Shape>& pending() {
  thread_local std::vector<Shape> shapes;
  return shapes;
}

cudaError_t launched(const void* function, dim3 grid, dim3 block, cudaStream_t stream) {
  char shape[96];
  std::snprintf(shape, sizeof shape, " <%u,%u,%u x %u,%u,%u>", grid.x, grid.y, grid.z, block.x,
                block.y, block.z);
  note("launch", names().of(function) + shape, stream);
  return health(/*launches=*/true);
}

}  // namespace
}  // namespace artesian::nothing

using namespace artesian::nothing;

// NOLINTBEGIN(bugprone-reserved-identifier): what nvcc's code calls
ARTESIAN_CUDA_NAME void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
ARTESIAN_CUDA_NAME void __cudaRegisterFatBinaryEnd(void**) {}
ARTESIAN_CUDA_NAME void __cudaUnregisterFatBinary(void**) {}
ARTESIAN_CUDA_NAME char __cudaInitModule(void**) {
  return 1;
}
ARTESIAN_CUDA_NAME void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int,
                                          int) {}
ARTESIAN_CUDA_NAME void __cudaRegisterFunction(void**, const char* function, char*,
                                               const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                               int*) {
  names().add(function, name);
}
ARTESIAN_CUDA_NAME unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                                        cudaStream_t stream) {
  pending().push_back({grid, block, shared, stream});
  return 0;
}
ARTESIAN_CUDA_NAME cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                          std::size_t* shared, void* stream) {
  if (pending().empty()) return cudaErrorMissingConfiguration;
  const Shape shape = pending().back();
  pending().pop_back();
  *grid = shape.grid;
  *block = shape.block;
  *shared = shape.shared;
  *static_cast<cudaStream_t*>(stream) = shape.stream;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                  void**, std::size_t, cudaStream_t stream) {
  return launched(kernel, grid, block, stream);
}
// NOLINTEND(bugprone-reserved-identifier)
ARTESIAN_CUDA_NAME cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**,
                                                std::size_t, cudaStream_t stream) {
  return launched(function, grid, block, stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* shape,
                                                   const void* function, void**) {
  return launched(function, shape->gridDim, shape->blockDim, shape->stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid,
                                                           dim3 block, void**, std::size_t,
                                                           cudaStream_t stream) {
  return launched(function, grid, block, stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = cudaFuncAttributes{};
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  attributes->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                             const void*, int,
                                                                             std::size_t) {
  *blocks = 2;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, std::size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char variable[1 << 16];
  *address = variable;
  return cudaSuccess;
}
