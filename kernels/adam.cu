// Adam on the device: one pass, memory bound.
//
// Note [Pieces in a launch]: a unit's state lies in the records of its sub-groups of, by default,
// 262,144 elements. Updating one takes a device only as long as a launch. So each launch has many
// pieces, whose arrays are its arguments; blockIdx.y is the number of a block's piece.
#include <algorithm>

#include "kernels/adam.cuh"
#include "kernels/cuda.h"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

static_assert(sizeof(AdamPieces) + sizeof(AdamConstants) <= 4000);

template <DType grad_dtype, DType out_dtype>
__global__ void __launch_bounds__(threads_per_block)
    adam_kernel(AdamPieces pieces, AdamConstants constants, bool vectors) {
  const AdamArrays& arrays = pieces.at[blockIdx.y].arrays;
  const auto* grad = static_cast<const Element<grad_dtype>*>(arrays.grad);
  auto* param_out = static_cast<Element<out_dtype>*>(arrays.param_out);
  for_groups_of_four(pieces.at[blockIdx.y].count, [&](std::uint64_t i, int n) {
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

template <DType grad_dtype>
__global__ void __launch_bounds__(threads_per_block)
    adam_split_kernel(AdamPieces pieces, AdamConstants constants, bool vectors) {
  const AdamArrays& arrays = pieces.at[blockIdx.y].arrays;
  const auto* grad = static_cast<const Element<grad_dtype>*>(arrays.grad);
  auto* high = static_cast<std::uint16_t*>(arrays.param_out);
  for_groups_of_four(pieces.at[blockIdx.y].count, [&](std::uint64_t i, int n) {
    auto upper = read(high + i, n, vectors);
    auto lower = read(arrays.master_low + i, n, vectors);
    auto m = read(arrays.exp_avg + i, n, vectors);
    auto v = read(arrays.exp_avg_sq + i, n, vectors);
    const auto g = read(grad + i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float p = join_master(upper.at[k], lower.at[k], v.at[k]);
      adam_element(p, m.at[k], v.at[k], widen<grad_dtype>(g.at[k]), constants);
      split_master(p, upper.at[k], lower.at[k], v.at[k]);
    }
    write(high + i, upper, n, vectors);
    write(arrays.master_low + i, lower, n, vectors);
    write(arrays.exp_avg + i, m, n, vectors);
    write(arrays.exp_avg_sq + i, v, n, vectors);
  });
}

/// Launches one kernel for up to pieces_max pieces.
template <DType grad_dtype, DType out_dtype>
Result<void> launch_pieces(std::span<const AdamPiece> some, const AdamConstants& constants,
                           cudaStream_t stream) {
  AdamPieces pieces{};
  std::copy(some.begin(), some.end(), pieces.at);
  bool vectors = true;
  std::uint64_t longest = 0;
  for (std::size_t index = 0; index < some.size(); ++index) {
    AdamArrays& arrays = pieces.at[index].arrays;
    // The kernel has written it already.
    if (arrays.param_out == arrays.param) arrays.param_out = nullptr;
    vectors = vectors && all_aligned(arrays);
    longest = std::max(longest, some[index].count);
  }
  if (longest == 0) return {};
  const dim3 blocks(blocks_for(longest), static_cast<unsigned>(some.size()));
  if (some.front().arrays.master_low != nullptr) {
    return launch(adam_split_kernel<grad_dtype>, blocks, threads_per_block, stream, pieces,
                  constants, vectors);
  }
  return launch(adam_kernel<grad_dtype, out_dtype>, blocks, threads_per_block, stream, pieces,
                constants, vectors);
}

}  // namespace

Result<void> adam_steps(std::span<const AdamPiece> pieces, const AdamStep& step,
                        cudaStream_t stream) {
  if (pieces.empty()) return {};
  const AdamArrays& first = pieces.front().arrays;
  return with_dtype(first.grad_dtype, [&](auto grad) {
    return with_dtype(first.param_out_dtype, [&](auto out) -> Result<void> {
      for (std::size_t done = 0; done < pieces.size(); done += pieces_max) {
        const auto some = pieces.subspan(done, std::min(pieces_max, pieces.size() - done));
        ARTESIAN_TRY_VOID((launch_pieces<decltype(grad)::value, decltype(out)::value>(
            some, make_adam_constants(step), stream)));
      }
      return {};
    });
  });
}

}  // namespace artesian::kernels::cuda
