// The rules of update.h on the device: one pass, memory bound, several pieces per launch (see Note
// [Pieces in a launch] in adam.cu). Dtypes are tested inside of the loop, alike for all threads:
// one kernel per rule, and one for its split master weights.
#include <algorithm>

#include "kernels/adam.cuh"
#include "kernels/cuda.h"
#include "kernels/launch.cuh"

namespace artesian::kernels::cuda {
namespace {

/// The constants of a step and the values derived from them, rounded as update_naive rounds them.
struct UpdateConstants {
  UpdateStep step;
  float one_minus_beta1;
  float one_minus_beta2;
  float decoupled_decay;
};
static_assert(sizeof(AdamPieces) + sizeof(UpdateConstants) <= 4000);

/// As has_squares(), which device code cannot call.
template <Rule rule>
constexpr bool with_squares = has_squares(rule);

/// Updates parameter p, average m and squares v in place for a gradient.
template <Rule rule>
__device__ inline void update_element(float& p, float& m, float& v, float grad, bool has_average,
                                      const UpdateConstants& constants) {
  const AdamStep& c = constants.step.constants;
  float g = __fmul_rn(grad, c.grad_multiplier);
  constexpr bool decays_grad = rule != Rule::Lion && rule != Rule::Lamb && rule != Rule::Muon;
  if constexpr (decays_grad) g = __fadd_rn(g, __fmul_rn(c.weight_decay, p));
  float u = 0.0f;
  if constexpr (rule == Rule::Sgd) {
    m = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(constants.step.grad_share, g));
    u = constants.step.nesterov ? __fadd_rn(g, __fmul_rn(c.beta1, m)) : m;
  } else if constexpr (rule == Rule::Adagrad) {
    v = __fadd_rn(v, __fmul_rn(g, g));
    u = __fdiv_rn(g, __fadd_rn(__fsqrt_rn(v), c.epsilon));
  } else if constexpr (rule == Rule::RmsProp) {
    v = __fadd_rn(__fmul_rn(c.beta2, v), __fmul_rn(__fmul_rn(constants.one_minus_beta2, g), g));
    u = __fdiv_rn(g, __fadd_rn(__fsqrt_rn(v), c.epsilon));
    if (has_average) {
      m = __fadd_rn(__fmul_rn(c.beta1, m), u);
      u = m;
    }
  } else if constexpr (rule == Rule::Lamb) {
    m = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(constants.one_minus_beta1, g));
    v = __fadd_rn(__fmul_rn(c.beta2, v), __fmul_rn(__fmul_rn(constants.one_minus_beta2, g), g));
    u = __fadd_rn(__fdiv_rn(m, __fadd_rn(__fsqrt_rn(v), c.epsilon)), __fmul_rn(c.weight_decay, p));
  } else if constexpr (rule == Rule::Muon) {
    u = g;
    p = __fsub_rn(p, __fmul_rn(constants.decoupled_decay, p));
  } else {
    static_assert(rule == Rule::Lion);
    const float sum = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(constants.one_minus_beta1, g));
    m = __fadd_rn(__fmul_rn(c.beta2, m), __fmul_rn(constants.one_minus_beta2, g));
    u = sum > 0.0f ? 1.0f : sum < 0.0f ? -1.0f : 0.0f;
    p = __fsub_rn(p, __fmul_rn(constants.decoupled_decay, p));
  }
  p = __fsub_rn(p, __fmul_rn(c.learning_rate, u));
}

/// As kernels::settle_tie.
__device__ inline float settle_tie(float master) {
  const unsigned bits = __float_as_uint(master);
  return (bits & 0x1ffffu) == 0x8000u ? __uint_as_float(bits - 1) : master;
}

/// Up to four elements of any dtype, as floats.
__device__ inline Four<float> read_any(const void* source, DType dtype, std::uint64_t i, int n,
                                       bool vectors) {
  if (dtype == DType::Float32) return read(static_cast<const float*>(source) + i, n, vectors);
  const auto bits = read(static_cast<const std::uint16_t*>(source) + i, n, vectors);
  Four<float> values;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    values.at[k] = dtype == DType::Float16 ? widen<DType::Float16>(bits.at[k])
                                           : widen<DType::BFloat16>(bits.at[k]);
  }
  return values;
}

__device__ inline void write_any(void* target, DType dtype, std::uint64_t i,
                                 const Four<float>& values, int n, bool vectors) {
  if (dtype == DType::Float32) return write(static_cast<float*>(target) + i, values, n, vectors);
  Four<std::uint16_t> bits;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    bits.at[k] = dtype == DType::Float16 ? round_to<DType::Float16>(values.at[k])
                                         : round_to<DType::BFloat16>(values.at[k]);
  }
  write(static_cast<std::uint16_t*>(target) + i, bits, n, vectors);
}

/// Four elements of an average, or zeros if there is none.
__device__ inline Four<float> read_if(const float* source, std::uint64_t i, int n, bool vectors) {
  return source != nullptr ? read(source + i, n, vectors) : Four<float>{};
}

template <Rule rule>
__global__ void __launch_bounds__(threads_per_block)
    update_kernel(AdamPieces pieces, UpdateConstants constants, bool vectors) {
  const AdamArrays& arrays = pieces.at[blockIdx.y].arrays;
  const bool has_average = arrays.exp_avg != nullptr;
  const bool settles = !with_squares<rule> && arrays.param_out != nullptr &&
                       arrays.param_out_dtype == DType::BFloat16;
  for_groups_of_four(pieces.at[blockIdx.y].count, [&](std::uint64_t i, int n) {
    auto p = read(arrays.param + i, n, vectors);
    auto m = read_if(arrays.exp_avg, i, n, vectors);
    auto v = read_if(arrays.exp_avg_sq, i, n, vectors);
    const auto g = read_any(arrays.grad, arrays.grad_dtype, i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      update_element<rule>(p.at[k], m.at[k], v.at[k], g.at[k], has_average, constants);
      if (settles) p.at[k] = settle_tie(p.at[k]);
    }
    write(arrays.param + i, p, n, vectors);
    if (has_average) write(arrays.exp_avg + i, m, n, vectors);
    if constexpr (with_squares<rule>) write(arrays.exp_avg_sq + i, v, n, vectors);
    if (arrays.param_out == nullptr) return;
    write_any(arrays.param_out, arrays.param_out_dtype, i, p, n, vectors);
  });
}

template <Rule rule>
__global__ void __launch_bounds__(threads_per_block)
    update_split_kernel(AdamPieces pieces, UpdateConstants constants, bool vectors) {
  const AdamArrays& arrays = pieces.at[blockIdx.y].arrays;
  const bool has_average = arrays.exp_avg != nullptr;
  auto* high = static_cast<std::uint16_t*>(arrays.param_out);
  for_groups_of_four(pieces.at[blockIdx.y].count, [&](std::uint64_t i, int n) {
    auto upper = read(high + i, n, vectors);
    auto lower = read(arrays.master_low + i, n, vectors);
    auto m = read_if(arrays.exp_avg, i, n, vectors);
    auto v = read_if(arrays.exp_avg_sq, i, n, vectors);
    const auto g = read_any(arrays.grad, arrays.grad_dtype, i, n, vectors);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float p = join_master(upper.at[k], lower.at[k], v.at[k]);
      update_element<rule>(p, m.at[k], v.at[k], g.at[k], has_average, constants);
      if constexpr (!with_squares<rule>) p = settle_tie(p);
      split_master(p, upper.at[k], lower.at[k], v.at[k]);
    }
    write(high + i, upper, n, vectors);
    write(arrays.master_low + i, lower, n, vectors);
    if (has_average) write(arrays.exp_avg + i, m, n, vectors);
    if constexpr (with_squares<rule>) write(arrays.exp_avg_sq + i, v, n, vectors);
  });
}

/// Launches one kernel for up to pieces_max pieces.
template <Rule rule>
Result<void> launch_pieces(std::span<const AdamPiece> some, const UpdateConstants& constants,
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
  const bool split = some.front().arrays.master_low != nullptr;
  return launch(split ? update_split_kernel<rule> : update_kernel<rule>, blocks, threads_per_block,
                stream, pieces, constants, vectors);
}

template <Rule rule>
Result<void> launch_all(std::span<const AdamPiece> pieces, const UpdateStep& step,
                        cudaStream_t stream) {
  const AdamStep& c = step.constants;
  const UpdateConstants constants{step, 1.0f - c.beta1, 1.0f - c.beta2,
                                  c.learning_rate * c.weight_decay};
  for (std::size_t done = 0; done < pieces.size(); done += pieces_max) {
    const auto some = pieces.subspan(done, std::min(pieces_max, pieces.size() - done));
    ARTESIAN_TRY_VOID(launch_pieces<rule>(some, constants, stream));
  }
  return {};
}

}  // namespace

Result<void> update_steps(std::span<const AdamPiece> pieces, const UpdateStep& step,
                          cudaStream_t stream) {
  switch (step.rule) {
    case Rule::Adam: break;
    case Rule::Sgd: return launch_all<Rule::Sgd>(pieces, step, stream);
    case Rule::Adagrad: return launch_all<Rule::Adagrad>(pieces, step, stream);
    case Rule::RmsProp: return launch_all<Rule::RmsProp>(pieces, step, stream);
    case Rule::Lion: return launch_all<Rule::Lion>(pieces, step, stream);
    case Rule::Lamb: return launch_all<Rule::Lamb>(pieces, step, stream);
    case Rule::Muon: return launch_all<Rule::Muon>(pieces, step, stream);
  }
  return adam_steps(pieces, step.constants, stream);
}

}  // namespace artesian::kernels::cuda
