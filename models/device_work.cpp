#include "models/device_work.h"

#include "models/flops.h"
#include "models/llama_config.h"

namespace artesian::models {
namespace {

/// Elements per token that a block's operators read and write, except products and attention; and
/// the number of launches.
struct Passes {
  double forward = 0.0;
  double backward = 0.0;
  double launches_forward = 0.0;
  double launches_backward = 0.0;
};

// Launches per operator: attention's backward has one kernel before and one after its main one; a
// norm's backward has two more to sum its weight's gradient; a product's backward has two.
constexpr double attention_backward = 3.0;
constexpr double norm_backward = 3.0;
constexpr double product_backward = 2.0;

constexpr double norms = 2.0;  // number in a block
// Reads of the input and of what is added to it; in backward, of their gradients.
constexpr double sums = 2.0;

Passes passes(const Gpt2Config& gpt2) {
  const auto hidden = static_cast<double>(gpt2.hidden);
  const auto inner = static_cast<double>(gpt2.inner);
  constexpr double products = 4.0;
  const double biases = 5 * hidden + inner;  // their gradients are sums of these
  return {.forward = norms * 2 * hidden + sums * 3 * hidden + 2 * inner,
          .backward = norms * 3 * hidden + sums * 3 * hidden + 3 * inner + biases +
                      /*queries, keys and values as one*/ 6 * hidden,
          .launches_forward = norms + sums + products + /*attention*/ 1 + /*gelu*/ 1,
          .launches_backward = norms * norm_backward + sums + products * product_backward +
                               attention_backward + /*gelu*/ 1 + /*biases*/ products +
                               /*as one*/ 1};
}

Passes passes(const LlamaConfig& llama) {
  const auto hidden = static_cast<double>(llama.hidden);
  const auto inner = static_cast<double>(llama.inner);
  const auto query = static_cast<double>(llama.heads * llama.head);
  const auto key = static_cast<double>(llama.key_value_heads * llama.head);
  const bool joined = joins_heads(llama);
  const bool gate_joined = joins_gate(llama);
  const bool fused = llama.activation == Activation::Silu;  // together with its product
  const double products = (joined ? 1 : 3) + (gate_joined ? 1 : 2) + 2;
  const double turns = joined ? 1 : 2;  // for rotary embeddings
  const double head_norms = llama.head_norms ? 2 : 0;
  Passes of{.forward = norms * 2 * hidden + sums * 3 * hidden + 2 * (query + key) +
                       (fused ? 3 : 5) * inner,
            .backward = norms * 3 * hidden + sums * 3 * hidden + 2 * (query + key) +
                        (fused ? 5 : 9) * inner,
            .launches_forward =
                norms + sums + products + turns + head_norms + /*attention*/ 1 + (fused ? 1 : 2),
            .launches_backward = (norms + head_norms) * norm_backward + sums +
                                 products * product_backward + turns + attention_backward +
                                 (fused ? 1 : 3)};
  if (llama.head_norms) {
    of.forward += 2 * (query + key);
    of.backward += 3 * (query + key);
  }
  // If one input has several products, its gradients are summed; with a joint product, the outputs'
  // gradients are joined instead.
  of.backward += joined ? 2 * (query + 2 * key) : 6 * hidden;
  of.launches_backward += joined ? 1 : 2;
  if (!gate_joined) {
    of.backward += 3 * hidden;
    of.launches_backward += 1;
  }
  // A bias's gradient is the sum of its product's gradient.
  of.backward += (llama.attention_bias ? query + 2 * key : 0) + (llama.output_bias ? hidden : 0) +
                 (llama.mlp_bias ? 2 * inner + hidden : 0);
  of.launches_backward +=
      (llama.attention_bias ? 3 : 0) + (llama.output_bias ? 1 : 0) + (llama.mlp_bias ? 3 : 0);
  return of;
}

}  // namespace

DeviceWork device_work(const ModelConfig& config, std::uint64_t length, DType dtype) {
  const bool is_llama = config.is_llama();
  const ForwardFlops products = forward_flops_per_token(config, 0);
  const double scores = forward_flops_per_token(config, length).block - products.block;
  const Passes block = is_llama ? passes(config.llama) : passes(config.gpt2);
  const auto size = static_cast<double>(dtype_size(dtype));
  const auto hidden = static_cast<double>(config.hidden);
  const auto vocabulary = static_cast<double>(config.vocab_size);
  DeviceWork work;
  work.block_forward = {.products = products.block,
                        .attention = scores / 2,
                        .bytes = size * block.forward,
                        .launches = block.launches_forward};
  work.block_backward = {.products = 2 * products.block,
                         .attention = 2.5 * scores / 2,
                         .bytes = size * block.backward,
                         .launches = block.launches_backward};
  // A norm; the logits, which one kernel reads and replaces by their gradient (the second and third
  // read is from caches); and their losses.
  work.head_forward = {
      .products = products.head, .bytes = size * (2 * hidden + 2 * vocabulary), .launches = 7.0};
  // Backward makes two products: the gradient of the input, and the gradient of the weight.
  work.head_backward = {.products = 2 * products.head,
                        .bytes = size * (3 * hidden + 4 * hidden),
                        .launches = product_backward + norm_backward + 5.0};
  return work;
}

}  // namespace artesian::models
