// silu(gate) * up on the device: each block processes a piece of a row, four elements per thread.
// Rows are the grid's second dimension, since a 64-bit division per four elements costs as much as
// the rest.
#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/exponential.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

constexpr unsigned elements_per_block = threads_per_block * 4;

/// Calls body(index in gate and up, index in contiguous arrays, n <= 4) for this thread's groups.
template <typename Body>
__device__ inline void for_own_groups(const GatedRows& all, Body&& body) {
  const std::uint64_t first =
      (static_cast<std::uint64_t>(blockIdx.x) * threads_per_block + threadIdx.x) * 4;
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * elements_per_block;
  for (std::uint64_t row = blockIdx.y; row < all.rows; row += gridDim.y) {
    for (std::uint64_t i = first; i < all.width; i += step) {
      const int n = all.width - i < 4 ? static_cast<int>(all.width - i) : 4;
      body(row * all.stride + i, row * all.width + i, n);
    }
  }
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_kernel(GatedRows all, void* product, bool vectors) {
  using T = Element<dtype>;
  for_own_groups(all, [&](std::uint64_t from, std::uint64_t to, int n) {
    const auto gates = read(static_cast<const T*>(all.gate) + from, n, vectors);
    const auto ups = read(static_cast<const T*>(all.up) + from, n, vectors);
    Four<T> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float gate = widen<dtype>(gates.at[k]);
      const float silu = widen<dtype>(round_to<dtype>(__fmul_rn(gate, sigmoid_on_device(gate))));
      out.at[k] = round_to<dtype>(__fmul_rn(silu, widen<dtype>(ups.at[k])));
    }
    write(static_cast<T*>(product) + to, out, n, vectors);
  });
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_gradient_kernel(GatedRows all, SwigluGradient gradient, bool vectors) {
  using T = Element<dtype>;
  for_own_groups(all, [&](std::uint64_t at, std::uint64_t dense, int n) {
    const auto gates = read(static_cast<const T*>(all.gate) + at, n, vectors);
    const auto ups = read(static_cast<const T*>(all.up) + at, n, vectors);
    const auto outers = read(static_cast<const T*>(gradient.outer) + dense, n, vectors);
    Four<T> of_gates, of_ups;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float gate = widen<dtype>(gates.at[k]);
      const float outer = widen<dtype>(outers.at[k]);
      const float q = sigmoid_on_device(gate);
      const float silu = widen<dtype>(round_to<dtype>(__fmul_rn(gate, q)));
      of_ups.at[k] = round_to<dtype>(__fmul_rn(outer, silu));
      const float inner = widen<dtype>(round_to<dtype>(__fmul_rn(outer, widen<dtype>(ups.at[k]))));
      const float slope = __fadd_rn(1.0f, __fmul_rn(gate, __fsub_rn(1.0f, q)));
      of_gates.at[k] = round_to<dtype>(__fmul_rn(__fmul_rn(inner, q), slope));
    }
    write(static_cast<T*>(gradient.gate) + at, of_gates, n, vectors);
    write(static_cast<T*>(gradient.up) + at, of_ups, n, vectors);
  });
}

/// All rows as one long row, if they are contiguous.
GatedRows joined(GatedRows all) {
  if (all.stride != all.width) return all;
  all.width *= all.rows;
  all.rows = 1;
  all.stride = all.width;
  return all;
}

dim3 blocks_of(const GatedRows& all) {
  constexpr std::uint64_t rows_max = 4096;  // at once: they fill any GPU
  return {blocks_for(all.width), static_cast<unsigned>(all.rows < rows_max ? all.rows : rows_max)};
}

/// True if all rows of all arrays begin where four elements may be read at once.
template <typename T, typename... Arrays>
bool may_take_four(const GatedRows& all, const Arrays*... arrays) {
  const bool rows = all.rows == 1 || (all.width % 4 == 0 && all.stride % 4 == 0);
  return rows && (aligned_for_four(static_cast<const T*>(arrays)) && ...);
}

}  // namespace

Result<void> swiglu(const GatedRows& rows, void* product, cudaStream_t stream) {
  if (rows.rows == 0 || rows.width == 0) return {};
  const GatedRows all = joined(rows);
  return with_dtype(rows.dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const bool vectors = may_take_four<Element<dtype>>(all, all.gate, all.up, product);
    return launch(swiglu_kernel<dtype>, blocks_of(all), threads_per_block, stream, all, product,
                  vectors);
  });
}

Result<void> swiglu_gradient(const GatedRows& rows, const SwigluGradient& gradient,
                             cudaStream_t stream) {
  if (rows.rows == 0 || rows.width == 0) return {};
  const GatedRows all = joined(rows);
  return with_dtype(rows.dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const bool vectors = may_take_four<Element<dtype>>(all, all.gate, all.up, gradient.outer,
                                                       gradient.gate, gradient.up);
    return launch(swiglu_gradient_kernel<dtype>, blocks_of(all), threads_per_block, stream, all,
                  gradient, vectors);
  });
}

}  // namespace artesian::kernels::cuda
