// Sums over virtual lanes: element i goes to lane i mod `lanes`, each lane is summed in order, and
// the lanes are added up in one fixed order that a GPU's warp can follow, too. So a sum has the
// same bits on every instruction set and on the GPU.
#pragma once

namespace artesian::kernels {

constexpr int lane_threads = 32;  // each holds `lanes` / 32 adjacent lanes

/// The sum of one thread's lanes, whose values are overwritten.
template <int count>
constexpr float own_total(float* lanes) noexcept {
  for (int width = count / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] = lanes[k] + lanes[k + width];
  }
  return lanes[0];
}

/// The sum of the lanes, in the order in which 32 threads add them up.
template <int lanes>
float lane_total(const float (&values)[lanes]) noexcept {
  constexpr int count = lanes / lane_threads;
  float sums[lane_threads];
  for (int thread = 0; thread < lane_threads; ++thread) {
    float own[count];
    for (int k = 0; k < count; ++k) own[k] = values[count * thread + k];
    sums[thread] = own_total<count>(own);
  }
  for (int width = lane_threads / 2; width > 0; width /= 2) {
    for (int thread = 0; thread < width; ++thread) sums[thread] += sums[thread + width];
  }
  return sums[0];
}

}  // namespace artesian::kernels
