// The norm of rows on the device: one warp per row, four virtual lanes per thread; each row is read
// twice, the second time from the caches. Sums over groups of rows use one thread per four columns.
#include "kernels/cuda.h"
#include "kernels/lanes.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

constexpr unsigned rows_per_block = threads_per_block / warp;
constexpr unsigned own_lanes = rms_norm_lanes / warp;
static_assert(own_lanes == 4);

/// Calls body(i, n <= 4) for this thread's elements of a row, in order.
template <typename Body>
__device__ inline void along_row(std::uint64_t width, Body&& body) {
#pragma unroll 2
  for (std::uint64_t i = threadIdx.x % warp * own_lanes; i < width; i += rms_norm_lanes) {
    body(i, width - i < 4 ? static_cast<int>(width - i) : 4);
  }
}

/// The row processed by this thread's warp.
__device__ inline std::uint64_t own_row() {
  return static_cast<std::uint64_t>(blockIdx.x) * rows_per_block + threadIdx.x / warp;
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    rms_norm_kernel(RmsNormRows all, void* output, float* inverses, bool vectors) {
  using T = Element<dtype>;
  const std::uint64_t row = own_row();
  if (row >= all.rows) return;
  const T* input = static_cast<const T*>(all.input) + row * all.width;
  const T* weight = static_cast<const T*>(all.weight);
  T* out = static_cast<T*>(output) + row * all.width;
  float lanes[own_lanes] = {};
  along_row(all.width, [&](std::uint64_t i, int n) {
    const auto four = read(input + i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x = widen<dtype>(four.at[k]);  // 0 beyond n
      lanes[k] = __fadd_rn(lanes[k], __fmul_rn(x, x));
    }
  });
  const float mean = __fdiv_rn(warp_total(lanes), static_cast<float>(all.width));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, all.epsilon)));
  along_row(all.width, [&](std::uint64_t i, int n) {
    auto four = read(input + i, n, vectors);
    const auto factors = read(weight + i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const T quotient = round_to<dtype>(__fmul_rn(widen<dtype>(four.at[k]), inverse));
      four.at[k] = round_to<dtype>(__fmul_rn(widen<dtype>(quotient), widen<dtype>(factors.at[k])));
    }
    write(out + i, four, n, vectors);
  });
  if (threadIdx.x % warp == 0) inverses[row] = inverse;
}

/// The input's gradient.
template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    rms_norm_input_kernel(RmsNormRows all, RmsNormGradient gradient, bool vectors) {
  using T = Element<dtype>;
  const std::uint64_t row = own_row();
  if (row >= all.rows) return;
  const T* input = static_cast<const T*>(all.input) + row * all.width;
  const T* weight = static_cast<const T*>(all.weight);
  const T* outer = static_cast<const T*>(gradient.outer) + row * all.width;
  T* out = static_cast<T*>(gradient.input) + row * all.width;
  const float inverse = gradient.inverses[row];
  /// Calls body(i, n, outer * weight, quotient), with four of each.
  const auto products = [&](auto&& body) {
    along_row(all.width, [&](std::uint64_t i, int n) {
      const auto xs = read(input + i, n, vectors);
      const auto factors = read(weight + i, n, vectors);
      const auto outers = read(outer + i, n, vectors);
      Four<float> inner, quotient;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        inner.at[k] = __fmul_rn(widen<dtype>(outers.at[k]), widen<dtype>(factors.at[k]));
        quotient.at[k] = __fmul_rn(widen<dtype>(xs.at[k]), inverse);
      }
      body(i, n, inner, quotient);
    });
  };
  float lanes[own_lanes] = {};
  products([&](std::uint64_t, int, const Four<float>& inner, const Four<float>& quotient) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      lanes[k] = __fadd_rn(lanes[k], __fmul_rn(inner.at[k], quotient.at[k]));
    }
  });
  const float along = __fdiv_rn(warp_total(lanes), static_cast<float>(all.width));
  products([&](std::uint64_t i, int n, const Four<float>& inner, const Four<float>& quotient) {
    Four<T> result;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float rest = __fsub_rn(inner.at[k], __fmul_rn(quotient.at[k], along));
      result.at[k] = round_to<dtype>(__fmul_rn(rest, inverse));
    }
    write(out + i, result, n, vectors);
  });
}

/// Calls body(row, first column, n <= 4, sums) for each row of this thread's group and columns, and
/// writes the sums.
template <typename Body>
__device__ inline void sum_own_group(std::uint64_t rows, std::uint64_t width, float* target,
                                     bool vectors, Body&& body) {
  const std::uint64_t quads = (width - 1) / 4 + 1;
  const std::uint64_t thread = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::uint64_t group = thread / quads;
  const std::uint64_t first = group * rows_per_group;
  if (first >= rows) return;
  const std::uint64_t column = thread % quads * 4;
  const int n = width - column < 4 ? static_cast<int>(width - column) : 4;
  const std::uint64_t end = rows - first < rows_per_group ? rows : first + rows_per_group;
  Four<float> sums = {};
#pragma unroll 4
  for (std::uint64_t row = first; row < end; ++row) body(row, column, n, sums);
  write(target + group * width + column, sums, n, vectors);
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    rms_norm_weight_kernel(RmsNormRows all, RmsNormGradient gradient, bool vectors) {
  using T = Element<dtype>;
  sum_own_group(all.rows, all.width, gradient.weight, vectors,
                [&](std::uint64_t row, std::uint64_t column, int n, Four<float>& sums) {
                  const std::uint64_t at = row * all.width + column;
                  const auto xs = read(static_cast<const T*>(all.input) + at, n, vectors);
                  const auto outers = read(static_cast<const T*>(gradient.outer) + at, n, vectors);
                  const float inverse = gradient.inverses[row];
#pragma unroll
                  for (int k = 0; k < 4; ++k) {
                    const float quotient = __fmul_rn(widen<dtype>(xs.at[k]), inverse);
                    sums.at[k] =
                        __fadd_rn(sums.at[k], __fmul_rn(widen<dtype>(outers.at[k]), quotient));
                  }
                });
}

__global__ void __launch_bounds__(threads_per_block)
    sum_groups_kernel(const float* source, std::uint64_t rows, std::uint64_t width, float* target,
                      bool vectors) {
  sum_own_group(rows, width, target, vectors,
                [&](std::uint64_t row, std::uint64_t column, int n, Four<float>& sums) {
                  const auto some = read(source + row * width + column, n, vectors);
#pragma unroll
                  for (int k = 0; k < 4; ++k) sums.at[k] = __fadd_rn(sums.at[k], some.at[k]);
                });
}

unsigned blocks_of_rows(std::uint64_t rows) {
  return static_cast<unsigned>((rows - 1) / rows_per_block + 1);
}

unsigned blocks_of_groups(std::uint64_t rows, std::uint64_t width) {
  const std::uint64_t threads = groups_of(rows) * ((width - 1) / 4 + 1);
  return static_cast<unsigned>((threads - 1) / threads_per_block + 1);
}

template <typename T, typename... Arrays>
bool may_take_four(std::uint64_t width, const Arrays*... arrays) {
  return width % 4 == 0 && (aligned_for_four(static_cast<const T*>(arrays)) && ...);
}

}  // namespace

Result<void> rms_norm(const RmsNormRows& rows, void* output, float* inverses, cudaStream_t stream) {
  if (rows.rows == 0 || rows.width == 0) return {};
  return with_dtype(rows.dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const bool vectors = may_take_four<Element<dtype>>(rows.width, rows.input, rows.weight, output);
    return launch(rms_norm_kernel<dtype>, blocks_of_rows(rows.rows), threads_per_block, stream,
                  rows, output, inverses, vectors);
  });
}

Result<void> rms_norm_gradient(const RmsNormRows& rows, const RmsNormGradient& gradient,
                               cudaStream_t stream) {
  if (rows.rows == 0 || rows.width == 0) return {};
  return with_dtype(rows.dtype, [&](auto constant) -> Result<void> {
    constexpr DType dtype = decltype(constant)::value;
    const bool vectors = may_take_four<Element<dtype>>(rows.width, rows.input, rows.weight,
                                                       gradient.outer, gradient.input) &&
                         aligned_for_four(gradient.weight);
    ARTESIAN_TRY_VOID(launch(rms_norm_input_kernel<dtype>, blocks_of_rows(rows.rows),
                             threads_per_block, stream, rows, gradient, vectors));
    if (gradient.weight == nullptr) return {};
    return launch(rms_norm_weight_kernel<dtype>, blocks_of_groups(rows.rows, rows.width),
                  threads_per_block, stream, rows, gradient, vectors);
  });
}

Result<void> sum_groups(const float* source, std::uint64_t rows, std::uint64_t width, float* target,
                        cudaStream_t stream) {
  if (rows == 0 || width == 0) return {};
  const bool vectors = may_take_four<float>(width, source, target);
  return launch(sum_groups_kernel, blocks_of_groups(rows, width), threads_per_block, stream, source,
                rows, width, target, vectors);
}

}  // namespace artesian::kernels::cuda
