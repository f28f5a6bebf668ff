// The sums of lanes.h on the device: a warp holds the lanes, spread over its threads.
#pragma once

#include "kernels/element.cuh"
#include "kernels/lanes.h"

namespace artesian::kernels::cuda {

constexpr unsigned warp = lane_threads;

/// Returns the value that thread number `thread` of this warp passes; all threads of the warp must
/// call.
__device__ inline float of_thread(float value, unsigned thread) {
  return static_cast<float>(
      __shfl_sync(0xffffffffu, value, static_cast<int>(thread), static_cast<int>(warp)));
}

/// Returns the sum of the warp's lanes, in every thread.
template <unsigned count>
__device__ inline float warp_total(float (&lanes)[count]) {
#pragma unroll
  for (unsigned width = count / 2; width > 0; width /= 2) {
#pragma unroll
    for (unsigned k = 0; k < width; ++k) lanes[k] = __fadd_rn(lanes[k], lanes[k + width]);
  }
  float sum = lanes[0];
  for (unsigned width = warp / 2; width > 0; width /= 2) {
    sum = __fadd_rn(sum, of_thread(sum, (threadIdx.x + width) % warp));
  }
  return of_thread(sum, 0);
}

}  // namespace artesian::kernels::cuda
