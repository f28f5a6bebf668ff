// Gradient kernels on the device. Unscaling is part of Adam (grad_multiplier), as on the CPU.
#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

template <DType acc_dtype, DType grad_dtype>
__global__ void __launch_bounds__(threads_per_block)
    accumulate_kernel(Element<acc_dtype>* acc, const float* grad, std::uint64_t count,
                      Accumulate how, std::uint32_t* not_finite, bool vectors) {
  bool finite = true;
  for_groups_of_four(count, [&](std::uint64_t i, int n) {
    const auto g = read(grad + i, n, vectors);  // zeros beyond n
    Four<Element<acc_dtype>> sum = {};
    if (how == Accumulate::Add) sum = read(acc + i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float value = widen<grad_dtype>(round_to<grad_dtype>(g.at[k]));
      if (how == Accumulate::Add) value = __fadd_rn(widen<acc_dtype>(sum.at[k]), value);
      sum.at[k] = round_to<acc_dtype>(value);
      finite = finite && is_finite<acc_dtype>(sum.at[k]);
    }
    write(acc + i, sum, n, vectors);
  });
  if (!finite) atomicOr(not_finite, 1u);
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

Result<void> accumulate_gradient(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                                 std::uint64_t count, Accumulate how, std::uint32_t* not_finite,
                                 cudaStream_t stream) {
  if (count == 0) return {};
  return with_dtype(acc_dtype, [&](auto acc_constant) {
    return with_dtype(grad_dtype, [&](auto grad_constant) {
      constexpr DType acc_type = decltype(acc_constant)::value;
      constexpr DType grad_type = decltype(grad_constant)::value;
      auto* sum = static_cast<Element<acc_type>*>(acc);
      const bool vectors = aligned_for_four(sum) && aligned_for_four(grad);
      return launch(accumulate_kernel<acc_type, grad_type>, blocks_for(count), threads_per_block,
                    stream, sum, grad, count, how, not_finite, vectors);
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
