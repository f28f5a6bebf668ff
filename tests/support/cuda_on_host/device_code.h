// Included first when a .cu file is compiled for the host: the names that nvcc gives to device
// code. Each thread of a launch is a call of the kernel.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>

#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __launch_bounds__
#define __launch_bounds__(...)
#define cudaLaunchKernelEx ::artesian::test_support::launch_on_host

namespace artesian::test_support {

/// Runs `thread` for every thread of a grid.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread);
/// Returns the value that lane `source` passes to the same shuffle. Lanes count within this
/// thread's part of the warp, which has `width` lanes.
std::uint64_t shuffle(std::uint64_t value, unsigned source, unsigned width);
cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, std::function<void()> thread);

template <typename... Parameters, typename... Arguments>
cudaError_t launch_on_host(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                           const Arguments&... arguments) {
  return enqueue_kernel(*config, [kernel, copies = std::tuple<Parameters...>(arguments...)] {
    std::apply(kernel, copies);
  });
}

}  // namespace artesian::test_support

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

template <typename T>
void __stwb(T* target, T value) {
  *target = value;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __fma_rn(double a, double b, double c) {
  return std::fma(a, b, c);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline unsigned atomicOr(unsigned* at, unsigned bits) {
  const unsigned before = *at;
  *at |= bits;
  return before;
}
inline double __shfl_sync(unsigned, double value, int source, int width) {
  return std::bit_cast<double>(artesian::test_support::shuffle(std::bit_cast<std::uint64_t>(value),
                                                               static_cast<unsigned>(source),
                                                               static_cast<unsigned>(width)));
}
