#include "models/attention.h"

#include <ATen/ATen.h>

namespace artesian::models {
namespace {

/// Repeats each head `count` times in a row. Makes a copy, unless there is one head, because the
/// fused kernel for CPUs needs as many heads of keys as of queries.
at::Tensor repeat_heads(const at::Tensor& split, std::int64_t count) {
  if (count == 1) return split;
  return split.unsqueeze(2)
      .expand({-1, -1, count, -1, -1})
      .reshape({split.size(0), split.size(1) * count, split.size(2), split.size(3)});
}

}  // namespace

at::Tensor split_heads(const at::Tensor& joined, std::int64_t heads) {
  return joined.view({joined.size(0), joined.size(1), heads, joined.size(2) / heads})
      .transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& split) {
  return split.transpose(1, 2).reshape(
      {split.size(0), split.size(2), split.size(1) * split.size(3)});
}

/// The fused kernel is 1.1 to 3 times as fast as matrix products with a softmax for lengths 256 to
/// 1024 on two cores, keeps no [length, length] matrix for backward, and gave the same bits in
/// repeated runs.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double scale) {
  // The fused kernel for GPUs accepts grouped heads directly, but not in fp32.
  const bool grouped = query.is_cuda() && query.scalar_type() != at::kFloat;
  const std::int64_t group = grouped ? 1 : query.size(1) / key.size(1);
  return at::scaled_dot_product_attention(query, repeat_heads(key, group),
                                          repeat_heads(value, group), /*attn_mask=*/{},
                                          /*dropout_p=*/0.0, /*is_causal=*/true, scale,
                                          /*enable_gqa=*/grouped);
}

}  // namespace artesian::models
