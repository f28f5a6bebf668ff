// Casts on the device.
#include "kernels/cuda.h"
#include "kernels/element.cuh"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    expand_kernel(const Element<dtype>* source, float* target, std::uint64_t count, bool vectors) {
  for_groups_of_four(count, [&](std::uint64_t i, int n) {
    const auto narrow_values = read(source + i, n, vectors);
    Four<float> values;
#pragma unroll
    for (int k = 0; k < 4; ++k) values.at[k] = widen<dtype>(narrow_values.at[k]);
    write(target + i, values, n, vectors);
  });
}

template <DType dtype>
__global__ void __launch_bounds__(threads_per_block)
    narrow_kernel(const float* source, Element<dtype>* target, std::uint64_t count,
                  std::uint32_t* not_finite, bool vectors) {
  bool finite = true;
  for_groups_of_four(count, [&](std::uint64_t i, int n) {
    const auto values = read(source + i, n, vectors);  // zeros beyond n
    Four<Element<dtype>> narrow_values;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      narrow_values.at[k] = round_to<dtype>(values.at[k]);
      finite = finite && is_finite<dtype>(narrow_values.at[k]);
    }
    write(target + i, narrow_values, n, vectors);
  });
  if (!finite) atomicOr(not_finite, 1u);
}

}  // namespace

Result<void> expand(const void* source, DType source_dtype, float* target, std::uint64_t count,
                    cudaStream_t stream) {
  if (count == 0) return {};
  return with_dtype(source_dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    const auto* elements = static_cast<const Element<dtype>*>(source);
    const bool vectors = aligned_for_four(elements) && aligned_for_four(target);
    return launch(expand_kernel<dtype>, blocks_for(count), threads_per_block, stream, elements,
                  target, count, vectors);
  });
}

Result<void> narrow(const float* source, void* target, DType target_dtype, std::uint64_t count,
                    std::uint32_t* not_finite, cudaStream_t stream) {
  if (count == 0) return {};
  return with_dtype(target_dtype, [&](auto constant) {
    constexpr DType dtype = decltype(constant)::value;
    auto* elements = static_cast<Element<dtype>*>(target);
    const bool vectors = aligned_for_four(source) && aligned_for_four(elements);
    return launch(narrow_kernel<dtype>, blocks_for(count), threads_per_block, stream, source,
                  elements, count, not_finite, vectors);
  });
}

}  // namespace artesian::kernels::cuda
