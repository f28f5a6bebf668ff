// Rotary position embeddings on the device: four pairs per thread, or four copied elements.
#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

__host__ __device__ inline std::uint64_t quads_of(std::uint64_t count) {
  return count / 4 + (count % 4 != 0 ? 1 : 0);
}

/// Number of threads per row.
__host__ __device__ inline std::uint64_t threads_of_row(const RotaryRows& all, bool in_place) {
  const std::uint64_t behind = in_place ? 0 : all.stride - all.heads * all.width;
  return all.heads * quads_of(all.width / 2) + quads_of(behind);
}

template <DType dtype>
__device__ inline Element<dtype> product(Element<dtype> x, Element<dtype> y) {
  return round_to<dtype>(__fmul_rn(widen<dtype>(x), widen<dtype>(y)));
}

/// Rotates n <= 4 pairs, from element i on, of the head at `first`.
template <DType dtype>
__device__ inline void turn_pairs(const RotaryRows& all, std::uint64_t first, std::uint64_t table,
                                  std::uint64_t i, bool forward, bool vectors) {
  using T = Element<dtype>;
  const std::uint64_t half = all.width / 2;
  const int n = half - i < 4 ? static_cast<int>(half - i) : 4;
  const auto lows = read(static_cast<const T*>(all.source) + first + i, n, vectors);
  const auto highs = read(static_cast<const T*>(all.source) + first + half + i, n, vectors);
  const auto cosines = read(static_cast<const T*>(all.cosines) + table + i, n, vectors);
  const auto sines = read(static_cast<const T*>(all.sines) + table + i, n, vectors);
  Four<T> low, high;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float ac = widen<dtype>(product<dtype>(lows.at[k], cosines.at[k]));
    const float bs = widen<dtype>(product<dtype>(highs.at[k], sines.at[k]));
    const float bc = widen<dtype>(product<dtype>(highs.at[k], cosines.at[k]));
    const float as = widen<dtype>(product<dtype>(lows.at[k], sines.at[k]));
    low.at[k] = round_to<dtype>(forward ? __fsub_rn(ac, bs) : __fadd_rn(ac, bs));
    high.at[k] = round_to<dtype>(forward ? __fadd_rn(bc, as) : __fsub_rn(bc, as));
  }
  write(static_cast<T*>(all.target) + first + i, low, n, vectors);
  write(static_cast<T*>(all.target) + first + half + i, high, n, vectors);
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    turn_kernel(RotaryRows all, bool forward, bool vectors) {
  using T = Element<dtype>;
  const std::uint64_t quads = quads_of(all.width / 2);
  const std::uint64_t threads = threads_of_row(all, all.source == all.target);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  std::uint64_t thread = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; thread < all.rows * threads; thread += stride) {
    const std::uint64_t row = thread / threads;
    const std::uint64_t part = thread % threads;
    if (part < all.heads * quads) {
      const std::uint64_t first = row * all.stride + part / quads * all.width;
      const std::uint64_t table = (all.position + row) % all.length * (all.width / 2);
      turn_pairs<dtype>(all, first, table, part % quads * 4, forward, vectors);
      continue;
    }
    const std::uint64_t i = all.heads * all.width + (part - all.heads * quads) * 4;
    const int n = all.stride - i < 4 ? static_cast<int>(all.stride - i) : 4;
    const std::uint64_t at = row * all.stride + i;
    write(static_cast<T*>(all.target) + at,
          read(static_cast<const T*>(all.source) + at, n, vectors), n, vectors);
  }
}

}  // namespace

Result<void> turn_rows(const RotaryRows& all, Turn turn, cudaStream_t stream) {
  const std::uint64_t threads = all.rows * threads_of_row(all, all.source == all.target);
  if (threads == 0) return {};
  const std::uint64_t blocks = (threads - 1) / threads_per_block + 1;
  return with_dtype(all.dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const auto aligned = [](const void* array) {
      return aligned_for_four(static_cast<const Element<dtype>*>(array));
    };
    const bool vectors = all.width % 8 == 0 && all.stride % 4 == 0 && aligned(all.source) &&
                         aligned(all.target) && aligned(all.cosines) && aligned(all.sines);
    return launch(turn_kernel<dtype>, static_cast<unsigned>(blocks < 65536 ? blocks : 65536),
                  threads_per_block, stream, all, turn == Turn::Forward, vectors);
  });
}

}  // namespace artesian::kernels::cuda
