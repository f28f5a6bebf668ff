// A CUDA runtime below the real LibTorch, for a machine without a GPU: memory is the host's, a copy
// copies, a kernel does nothing, and everything completes at once. So the host makes all the calls
// that it would make for a GPU, and tests see them. Results of kernels are zeros, or whatever the
// memory held.
//
// It is loaded before libcudart.so by LD_PRELOAD, and LD_LIBRARY_PATH leads to its libcuda.so.1 and
// libnvidia-ml.so.1 (tests/python/cuda_of_nothing.py). Like the driver, it reads
// CUDA_VISIBLE_DEVICES only once, when it is first asked for devices. Functions that it lacks are
// the real runtime's, which fail without a driver.
//
//   ARTESIAN_CUDA_OF_NOTHING=N        number of GPUs in the machine; absent: 1
//   ARTESIAN_CUDA_OF_NOTHING_LOG=F    appends a line for each call that a GPU would see:
//                                     kind, thread, device, stream, bytes, what
//   ARTESIAN_CUDA_OF_NOTHING_MEMORY=N bytes of each GPU; absent: 80 GiB
//   ARTESIAN_CUDA_OF_NOTHING_FAILS=N  kernel N and all calls after it return an error
//
// Thread: any.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's
#define ARTESIAN_CUDA_NAME extern "C" __attribute__((visibility("default")))
// NOLINTEND(readability-identifier-naming)

namespace artesian::nothing {

/// Returns the number in an environment variable.
std::size_t number_in(const char* variable, std::size_t absent);

/// Returns the bytes of each device.
std::size_t memory_bytes();

/// Returns the error of all calls once a kernel has failed, and counts a launch if there is one.
cudaError_t health(bool launches = false);

/// Returns how many devices the process sees.
int visible_devices();

/// The calling thread's current device.
int& current_device();

/// Appends a line to the log, if there is one.
void note(const char* kind, std::string_view what, const void* stream = nullptr,
          std::size_t bytes = 0);

/// Returns a function of the driver by name, for the allocator's expandable segments.
void* driver_function(std::string_view name);

}  // namespace artesian::nothing
