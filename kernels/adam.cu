// Adam on the device: one pass, memory bound.
#include "kernels/adam.cuh"
#include "kernels/cuda.h"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

template <DType grad_dtype, DType out_dtype>
__global__ void __launch_bounds__(threads_per_block)
    adam_kernel(AdamArrays arrays, std::uint64_t count, AdamConstants constants, bool vectors) {
  const auto* grad = static_cast<const Element<grad_dtype>*>(arrays.grad);
  auto* param_out = static_cast<Element<out_dtype>*>(arrays.param_out);
  for_groups_of_four(count, [&](std::uint64_t i, int n) {
    auto p = read(arrays.param + i, n, vectors);
    auto m = read(arrays.exp_avg + i, n, vectors);
    auto v = read(arrays.exp_avg_sq + i, n, vectors);
    const auto g = read(grad + i, n, vectors);
    Four<Element<out_dtype>> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      adam_element(p.at[k], m.at[k], v.at[k], widen<grad_dtype>(g.at[k]), constants);
      out.at[k] = round_to<out_dtype>(p.at[k]);
    }
    write(arrays.param + i, p, n, vectors);
    write(arrays.exp_avg + i, m, n, vectors);
    write(arrays.exp_avg_sq + i, v, n, vectors);
    if (param_out != nullptr) write(param_out + i, out, n, vectors);
  });
}

}  // namespace

Result<void> adam_step(const AdamArrays& arrays, std::uint64_t count, const AdamStep& step,
                       cudaStream_t stream) {
  if (count == 0) return {};
  AdamArrays on_device = arrays;
  if (arrays.param_out == arrays.param) on_device.param_out = nullptr;  // written already
  return with_dtype(arrays.grad_dtype, [&](auto grad) {
    return with_dtype(arrays.param_out_dtype, [&](auto out) {
      constexpr DType grad_dtype = decltype(grad)::value;
      constexpr DType out_dtype = decltype(out)::value;
      const bool vectors =
          aligned_for_four(arrays.param) && aligned_for_four(arrays.exp_avg) &&
          aligned_for_four(arrays.exp_avg_sq) &&
          aligned_for_four(static_cast<const Element<grad_dtype>*>(arrays.grad)) &&
          aligned_for_four(static_cast<const Element<out_dtype>*>(on_device.param_out));
      return launch(adam_kernel<grad_dtype, out_dtype>, blocks_for(count), threads_per_block,
                    stream, on_device, count, make_adam_constants(step), vectors);
    });
  });
}

}  // namespace artesian::kernels::cuda
