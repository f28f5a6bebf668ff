// The functions of cuBLAS and cuBLASLt that LibTorch calls. They compute nothing. They are declared
// here, with only the arguments that are read, since a toolkit need not have cuBLAS. 0 is their
// status for success.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "tests/support/cuda_of_nothing/nothing.h"

namespace artesian::nothing {
namespace {

/// The stream of each handle, set by cublasSetStream.
class Streams {
 public:
  void set(const void* handle, const void* stream) {
    const std::scoped_lock lock(mutex_);
    streams_[handle] = stream;
  }
  const void* of(const void* handle) {
    const std::scoped_lock lock(mutex_);
    const auto found = streams_.find(handle);
    return found == streams_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, const void*> streams_;
};

Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

int multiplied(const char* name, const void* handle, int m, int n, int k) {
  char text[96];
  std::snprintf(text, sizeof text, "%s %d x %d x %d", name, m, n, k);
  note("product", text, streams().of(handle));
  return 0;
}

/// Makes a descriptor, a layout or a preference. Its content is never read.
int made(void** object) {
  *object = new char;
  return 0;
}

int forgotten(void* object) {
  delete static_cast<char*>(object);
  return 0;
}

}  // namespace
}  // namespace artesian::nothing

using namespace artesian::nothing;

ARTESIAN_CUDA_NAME int cublasCreate_v2(void** handle) {
  return made(handle);
}
ARTESIAN_CUDA_NAME int cublasDestroy_v2(void* handle) {
  return forgotten(handle);
}
ARTESIAN_CUDA_NAME int cublasSetStream_v2(void* handle, void* stream) {
  streams().set(handle, stream);
  return 0;
}
ARTESIAN_CUDA_NAME int cublasSetWorkspace_v2(void*, void*, std::size_t) {
  return 0;
}
ARTESIAN_CUDA_NAME int cublasSetMathMode(void*, int) {
  return 0;
}
ARTESIAN_CUDA_NAME int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
ARTESIAN_CUDA_NAME int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}
ARTESIAN_CUDA_NAME int cublasSetPointerMode_v2(void*, int) {
  return 0;
}
ARTESIAN_CUDA_NAME int cublasGemmEx(void* handle, int, int, int m, int n, int k) {
  return multiplied("gemm", handle, m, n, k);
}
ARTESIAN_CUDA_NAME int cublasGemmStridedBatchedEx(void* handle, int, int, int m, int n, int k) {
  return multiplied("gemm of several", handle, m, n, k);
}
ARTESIAN_CUDA_NAME int cublasSgemm_v2(void* handle, int, int, int m, int n, int k) {
  return multiplied("gemm in fp32", handle, m, n, k);
}
ARTESIAN_CUDA_NAME int cublasSgemmStridedBatched(void* handle, int, int, int m, int n, int k) {
  return multiplied("gemm of several in fp32", handle, m, n, k);
}

ARTESIAN_CUDA_NAME std::size_t cublasLtGetVersion() {
  return 130100;
}
ARTESIAN_CUDA_NAME int cublasLtMatmulDescCreate(void** object, int, int) {
  return made(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatmulDescDestroy(void* object) {
  return forgotten(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) {
  return 0;
}
ARTESIAN_CUDA_NAME int cublasLtMatrixLayoutCreate(void** object, int, std::uint64_t, std::uint64_t,
                                                  std::int64_t) {
  return made(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatrixLayoutDestroy(void* object) {
  return forgotten(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t) {
  return 0;
}
ARTESIAN_CUDA_NAME int cublasLtMatmulPreferenceCreate(void** object) {
  return made(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatmulPreferenceDestroy(void* object) {
  return forgotten(object);
}
ARTESIAN_CUDA_NAME int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) {
  return 0;
}
/// Returns one algorithm, all zeros.
ARTESIAN_CUDA_NAME int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*,
                                                      void*, int wanted, void* results,
                                                      int* found) {
  constexpr std::size_t size_of_result = 88;
  std::memset(results, 0, size_of_result * static_cast<std::size_t>(wanted));
  *found = 1;
  return 0;
}
ARTESIAN_CUDA_NAME int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*,
                                      void*, const void*, const void*, void*, void*, void*,
                                      const void*, void*, std::size_t, void* stream) {
  note("product", "gemm with an epilogue", stream);
  return 0;
}
