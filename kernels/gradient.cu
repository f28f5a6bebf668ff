// Gradient kernels on the device. Unscaling is part of Adam (grad_multiplier), as on the CPU. A
// launch adds many pieces: Note [Pieces in a launch] in adam.cu.
#include <algorithm>

#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

constexpr std::size_t gradients_max = 120;  // CUDA allows arguments of 4 KiB
struct GradientPieces {
  GradientPiece at[gradients_max];
};
static_assert(sizeof(GradientPieces) <= 4000);

template <DType acc_dtype, DType grad_dtype, DType rounded>
__global__ void __launch_bounds__(threads_per_block)
    accumulate_kernel(GradientPieces pieces, std::uint32_t* not_finite, bool vectors) {
  const GradientPiece& piece = pieces.at[blockIdx.y];
  auto* const acc = static_cast<Element<acc_dtype>*>(piece.acc);
  const auto* const grad = static_cast<const Element<grad_dtype>*>(piece.grad);
  const bool adds = piece.how == Accumulate::Add;
  bool finite = true;
  for_groups_of_four(piece.count, [&](std::uint64_t i, int n) {
    const auto g = read(grad + i, n, vectors);  // zeros beyond n
    Four<Element<acc_dtype>> sum = {};
    if (adds) sum = read(acc + i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float value = widen<rounded>(round_to<rounded>(widen<grad_dtype>(g.at[k])));
      if (adds) value = __fadd_rn(widen<acc_dtype>(sum.at[k]), value);
      sum.at[k] = round_to<acc_dtype>(value);
      finite = finite && is_finite<acc_dtype>(sum.at[k]);
    }
    write(acc + i, sum, n, vectors);
  });
  if (!finite) atomicOr(not_finite, 1u);
}

/// Launches one kernel for at most gradients_max pieces.
template <DType acc_dtype, DType grad_dtype, DType rounded>
Result<void> launch_gradients(std::span<const GradientPiece> some, std::uint32_t* not_finite,
                              cudaStream_t stream) {
  GradientPieces pieces{};
  std::copy(some.begin(), some.end(), pieces.at);
  bool vectors = true;
  std::uint64_t longest = 0;
  for (const GradientPiece& piece : some) {
    vectors = vectors && aligned_for_four(static_cast<Element<acc_dtype>*>(piece.acc)) &&
              aligned_for_four(static_cast<const Element<grad_dtype>*>(piece.grad));
    longest = std::max(longest, piece.count);
  }
  if (longest == 0) return {};
  const dim3 blocks(blocks_for(longest), static_cast<unsigned>(some.size()));
  return launch(accumulate_kernel<acc_dtype, grad_dtype, rounded>, blocks, threads_per_block,
                stream, pieces, not_finite, vectors);
}

constexpr unsigned virtual_lanes = 16;
constexpr unsigned leaves_per_block = 4;  // 64 threads: many small blocks balance best

// 16 neighbouring threads hold the 16 virtual lanes of one leaf, so the order of all additions is
// the same as on the CPU. The square of a float is exact in fp64, so fusing does not change the
// rounding.
template <DType dtype>
__global__ void __launch_bounds__(virtual_lanes* leaves_per_block)
    sum_squares_kernel(const Element<dtype>* data, std::uint64_t count, std::uint64_t leaves,
                       double* leaf_sums) {
  const std::uint64_t leaf =
      static_cast<std::uint64_t>(blockIdx.x) * leaves_per_block + threadIdx.x / virtual_lanes;
  const unsigned lane = threadIdx.x % virtual_lanes;
  const std::uint64_t first = leaf * norm_leaf;
  const std::uint64_t size =
      leaf >= leaves ? 0 : (count - first < norm_leaf ? count - first : norm_leaf);
  double sum = 0.0;
#pragma unroll 8
  for (std::uint64_t i = lane; i < size; i += virtual_lanes) {
    const auto x = static_cast<double>(widen<dtype>(data[first + i]));
    sum = __fma_rn(x, x, sum);
  }
  double total = __shfl_sync(0xffffffffu, sum, 0, virtual_lanes);
  for (unsigned other = 1; other < virtual_lanes; ++other) {
    total = __dadd_rn(total, __shfl_sync(0xffffffffu, sum, static_cast<int>(other), virtual_lanes));
  }
  if (lane == 0 && leaf < leaves) {
    const double canonical_nan = __longlong_as_double(0x7ff8000000000000ll);
    leaf_sums[leaf] = total == total ? total : canonical_nan;
  }
}

}  // namespace

Result<void> accumulate_gradients(std::span<const GradientPiece> pieces,
                                  const GradientDtypes& dtypes, std::uint32_t* not_finite,
                                  cudaStream_t stream) {
  const bool as_rounded = dtypes.grad == dtypes.rounded;
  return with_dtype(dtypes.acc, [&](auto acc_constant) {
    return with_dtype(dtypes.rounded, [&](auto rounded_constant) -> Result<void> {
      constexpr DType acc = decltype(acc_constant)::value;
      constexpr DType rounded = decltype(rounded_constant)::value;
      const auto launched = as_rounded ? launch_gradients<acc, rounded, rounded>
                                       : launch_gradients<acc, DType::Float32, rounded>;
      for (std::size_t done = 0; done < pieces.size(); done += gradients_max) {
        const auto some = pieces.subspan(done, std::min(gradients_max, pieces.size() - done));
        ARTESIAN_TRY_VOID(launched(some, not_finite, stream));
      }
      return {};
    });
  });
}

Result<void> sum_squares(const void* data, DType dtype, std::uint64_t count, double* leaf_sums,
                         cudaStream_t stream) {
  if (count == 0) return {};
  const std::uint64_t leaves = (count - 1) / norm_leaf + 1;
  const auto grid = static_cast<unsigned>((leaves - 1) / leaves_per_block + 1);
  return with_dtype(dtype, [&](auto constant) {
    constexpr DType type = decltype(constant)::value;
    return launch(sum_squares_kernel<type>, grid, virtual_lanes * leaves_per_block, stream,
                  static_cast<const Element<type>*>(data), count, leaves, leaf_sums);
  });
}

}  // namespace artesian::kernels::cuda
