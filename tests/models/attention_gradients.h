// Gradients of causal_attention at a length of many blocks of keys, at which a kernel that adds
// with atomics gives different bits in each run. With one block of keys, up to 128, it does not.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "models/attention.h"

namespace artesian::models {

struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t heads = 4;
  std::int64_t key_heads = 2;
  std::int64_t length = 1024;
  std::int64_t head_size = 128;
};

/// Computes the gradients of query, key and value, all in bf16, on `device`. The values are the
/// same in each call.
inline std::vector<at::Tensor> attention_gradients(c10::Device device,
                                                   const AttentionShape& shape) {
  const auto made = [&](std::int64_t heads, double start) {
    const std::int64_t count = shape.batch * shape.length * heads * shape.head_size;
    const at::Tensor values = at::arange(count, at::kDouble).mul(0.7).add(start).sin();
    return values.view({shape.batch, heads, shape.length, shape.head_size})
        .to(device, at::kBFloat16)
        .requires_grad_();
  };
  const std::vector<at::Tensor> inputs = {made(shape.heads, 0.1), made(shape.key_heads, 0.2),
                                          made(shape.key_heads, 0.3)};
  const at::Tensor output = causal_attention(inputs[0], inputs[1], inputs[2], 0.088);
  return torch::autograd::grad({output}, inputs, {at::ones_like(output)});
}

}  // namespace artesian::models
