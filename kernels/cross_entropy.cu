// The rows of a cross entropy on the device: one warp per row, eight virtual lanes per thread. A
// row of a large vocabulary is read three times, the second and third time from the caches.
#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/exponential.cuh"
#include "kernels/lanes.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

constexpr unsigned lanes_of_thread = cross_entropy_lanes / warp;
constexpr unsigned rows_per_block = 8;

/// Calls body(index, lane of the thread, element) for this thread's elements of a row, in order.
template <typename T, typename Body>
__device__ inline void for_own(T* row, std::uint64_t count, bool vectors, Body&& body) {
  const std::uint64_t first = threadIdx.x % warp * lanes_of_thread;
#pragma unroll 2
  for (std::uint64_t i = first; i < count; i += cross_entropy_lanes) {
#pragma unroll
    for (unsigned half = 0; half < lanes_of_thread; half += 4) {
      if (i + half >= count) break;
      const int n = count - i - half < 4 ? static_cast<int>(count - i - half) : 4;
      auto four = read(row + i + half, n, vectors);
      bool changed = false;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < n) changed = body(i + half + k, half + k, four.at[k]);
      }
      if (changed) write(row + i + half, four, n, vectors);
    }
  }
}

template <DType dtype>
__global__ void __launch_bounds__(warp* rows_per_block)
    cross_entropy_kernel(CrossEntropyRows all, bool vectors) {
  const std::uint64_t number =
      static_cast<std::uint64_t>(blockIdx.x) * rows_per_block + threadIdx.x / warp;
  if (number >= all.rows) return;
  auto* row = static_cast<Element<dtype>*>(all.logits) + number * all.vocabulary;
  const auto target = static_cast<std::uint64_t>(all.targets[number]);
  const float nan = __uint_as_float(0x7fc00000u);
  const bool within = target < all.vocabulary;
  const float at_target = within ? widen<dtype>(row[target]) : nan;

  float largest = __uint_as_float(0xff800000u);  // -infinity
  for_own(row, all.vocabulary, vectors, [&](std::uint64_t, unsigned, Element<dtype>& element) {
    const float x = widen<dtype>(element);
    largest = x > largest ? x : largest;
    return false;
  });
  const unsigned thread = threadIdx.x % warp;
  for (unsigned width = warp / 2; width > 0; width /= 2) {
    const float other = of_thread(largest, (thread + width) % warp);
    largest = other > largest ? other : largest;
  }
  largest = of_thread(largest, 0);

  float lanes[lanes_of_thread] = {};
  for_own(row, all.vocabulary, vectors, [&](std::uint64_t, unsigned lane, Element<dtype>& element) {
    lanes[lane] =
        __fadd_rn(lanes[lane], exponential_on_device(__fsub_rn(widen<dtype>(element), largest)));
    return false;
  });
  const float sum = warp_total(lanes);

  const float factor = within ? __fdiv_rn(all.scale, sum) : nan;
  for_own(row, all.vocabulary, vectors, [&](std::uint64_t i, unsigned, Element<dtype>& element) {
    float gradient =
        __fmul_rn(exponential_on_device(__fsub_rn(widen<dtype>(element), largest)), factor);
    if (i == target) gradient = __fsub_rn(gradient, all.scale);
    element = round_to<dtype>(gradient);
    return true;
  });
  if (thread == 0) {
    all.sums[number] = sum;
    all.picked[number] = __fsub_rn(at_target, largest);
  }
}

}  // namespace

Result<void> cross_entropy_rows(const CrossEntropyRows& rows, cudaStream_t stream) {
  if (rows.rows == 0) return {};
  const auto blocks = static_cast<unsigned>((rows.rows - 1) / rows_per_block + 1);
  return with_dtype(rows.dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const bool vectors = rows.vocabulary % 4 == 0 &&
                         aligned_for_four(static_cast<const Element<dtype>*>(rows.logits));
    return launch(cross_entropy_kernel<dtype>, blocks, warp * rows_per_block, stream, rows,
                  vectors);
  });
}

}  // namespace artesian::kernels::cuda
