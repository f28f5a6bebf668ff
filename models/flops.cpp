#include "models/flops.h"

namespace artesian::models {

double flops_per_token(const ModelConfig& config, std::uint64_t length) {
  const Gpt2Config& gpt2 = config.gpt2;
  const auto hidden = static_cast<double>(gpt2.hidden);
  const auto layers = static_cast<double>(gpt2.layers);
  const double block = 4 * hidden * hidden + 2 * hidden * static_cast<double>(gpt2.inner);
  const double weights = layers * block + hidden * static_cast<double>(gpt2.vocab_size);
  return 6 * weights + 12 * layers * hidden * static_cast<double>(length);
}

}  // namespace artesian::models
