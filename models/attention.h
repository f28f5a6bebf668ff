// Causal attention, as all decoders have it.
#pragma once

#include <ATen/core/Tensor.h>

namespace artesian::models {

/// Shape: joined: [samples, length, heads * width]; result: [samples, heads, length, width], a
/// view.
at::Tensor split_heads(const at::Tensor& joined, std::int64_t heads);

/// The inverse.
at::Tensor join_heads(const at::Tensor& split);

/// softmax(scale * query key^T) value, where each position attends to itself and earlier ones.
/// Shape: query, result: [samples, heads, length, width]; key, value: the same shape, or with fewer
/// heads, each of which serves a group of consecutive query heads (grouped-query attention).
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double scale);

}  // namespace artesian::models
