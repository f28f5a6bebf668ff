// CUDA on the host: a runtime in place of the toolkit's libcudart, and the .cu files compiled as
// C++ for it, so that tests of the CUDA backend run where there is no GPU. A test program that
// links `cuda_on_host` sees the GPUs of CudaOnHost, below.
//
// It proves of our code: the arithmetic, indexing, tails and alignment of the kernels; the order of
// enqueued work, with streams and events; the handling of errors; that all resources are released.
// It is as unhelpful as CUDA's documentation allows:
//
//   a missing wait, an event      work runs when somebody waits for it, or in any order that
//   streams reused too early              and events allow; copies take their bytes when they run
//   a missing cudaSetDevice       the null stream is the current device's; work for a stream of
//                                 another device is refused
//   memory of the wrong kind      refused by copies, as is what lies in two registrations, or in
//                                 one in part; device memory is inaccessible but while work
//                                 runs, and for ever once freed: SIGSEGV
//   a device that does not answer where cudaFree, cudaHostUnregister, cudaMemcpy and
//                                 cudaDeviceSynchronize would wait, they abort the program
//   an error that stays           after a failure of work every call fails
//
// It says nothing about the hardware, nvcc's code, the rounding of the GPU's own conversions,
// LibTorch's CUDA part, or time. Threads of a block run one after the other except at __shfl_sync,
// so races between them do not show. Functions that our code does not use are missing. One thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <string>

namespace artesian::test_support {

/// The machine that the runtime pretends to be. Tests change it at any time.
struct CudaOnHost {
  enum class Order : std::uint8_t { Late, Early, Random };

  int devices = 1;
  std::uint64_t bytes_per_device = std::uint64_t{1} << 30;
  int capability_major = 8;
  int driver_version = CUDART_VERSION;          // 0: none is installed
  Order order = Order::Late;                    // or ARTESIAN_CUDA_ON_HOST: late, early, random
  std::mt19937_64 random = std::mt19937_64(1);  // or ARTESIAN_SEED
  std::uint64_t registration_bytes_max = ~std::uint64_t{0};  // of one call
  std::uint64_t registered_bytes_max = ~std::uint64_t{0};    // of all together
  bool host_tensors = false;  // copies take any address: the model's tensors are the CPU's

  // Faults.
  std::string failing_call;                     // the next call of this name fails, once,
  cudaError_t failing_with = cudaErrorUnknown;  // with this
  std::int64_t operations_until_failure = -1;   // then one fails as an illegal address, if not < 0
  bool hangs = false;                           // nothing enqueued runs

  /// Runs what is enqueued in a stream, and what that waits for.
  static void drain(cudaStream_t stream);
  /// Lets the host touch device memory, or stops that. Calls nest.
  static void open_memory();
  static void close_memory();
  /// Streams, events, allocations and registrations that were not released, in words.
  static std::string left();
  /// A new machine. Nothing of the old one may be in use.
  static void reset();
};

CudaOnHost& cuda_on_host();

}  // namespace artesian::test_support
