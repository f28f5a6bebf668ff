#include "models/flops.h"

namespace artesian::models {
namespace {

/// Number of elements in a block's matrices.
double block_elements(const Gpt2Config& gpt2) {
  const auto hidden = static_cast<double>(gpt2.hidden);
  return 4 * hidden * hidden + 2 * hidden * static_cast<double>(gpt2.inner);
}

double block_elements(const LlamaConfig& llama) {
  const auto heads = static_cast<double>(2 * llama.heads + 2 * llama.key_value_heads);
  return static_cast<double>(llama.hidden) *
         (heads * static_cast<double>(llama.head) + 3 * static_cast<double>(llama.inner));
}

}  // namespace

ForwardFlops forward_flops_per_token(const ModelConfig& config, std::uint64_t length) {
  const bool is_llama = config.is_llama();
  const auto attention =
      static_cast<double>(is_llama ? config.llama.heads * config.llama.head : config.gpt2.hidden);
  const double block = is_llama ? block_elements(config.llama) : block_elements(config.gpt2);
  return {.block = 2 * block + 4 * attention * static_cast<double>(length),
          .head = 2 * static_cast<double>(config.hidden) * static_cast<double>(config.vocab_size)};
}

double flops_per_token(const ModelConfig& config, std::uint64_t length) {
  const ForwardFlops forward = forward_flops_per_token(config, length);
  return 3 * (static_cast<double>(layer_count(config)) * forward.block + forward.head);
}

}  // namespace artesian::models
