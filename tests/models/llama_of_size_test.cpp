// Proves that a Llama shape of a given size has that size, within half a layer, and the proportions
// of the published models; and the formulas of its work and its activations on small numbers.
#include "models/llama_of_size.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/activation_bytes.h"
#include "models/flops.h"

namespace artesian::models {
namespace {

double numel_of(const ModelConfig& config) {
  double numel = 0;
  for (const auto& parameter : model_parameters(config)) {
    numel += static_cast<double>(parameter.numel());
  }
  return numel;
}

TEST(LlamaOfSize, HasTheSizeThatIsAskedFor) {
  for (double wanted = 1.1e7; wanted < 5e12; wanted *= 1.37) {
    SCOPED_TRACE(wanted);
    const ModelConfig config = llama_of_size(wanted);
    const double layer = 12.2 * std::pow(static_cast<double>(config.hidden), 2);
    EXPECT_NEAR(numel_of(config), wanted, layer * 0.53);
    EXPECT_EQ(config.llama.heads * 128, config.hidden);
    EXPECT_EQ(config.llama.inner % 256, 0);
    EXPECT_FALSE(config.tied);
  }
}

TEST(LlamaOfSize, HasTheProportionsOfPublishedModels) {
  const ModelConfig seven = llama_of_size(6.74e9);
  EXPECT_EQ(seven.hidden, 4096);
  EXPECT_EQ(seven.llama.inner, 11008);
  EXPECT_EQ(layer_count(seven), 32);
  EXPECT_EQ(numel_of(seven), 6738415616.0);  // Llama 7B's
}

TEST(LlamaOfSize, HasALayerAtLeast) {
  const ModelConfig least = llama_of_size(llama_size_min);
  EXPECT_EQ(least.hidden, 128);
  EXPECT_NEAR(numel_of(least), llama_size_min, 1.1e5);
}

TEST(ForwardFlops, AddUpToThoseOfAToken) {
  const ModelConfig config = llama_of_size(1e9);
  const ForwardFlops forward = forward_flops_per_token(config, 512);
  const double layers = static_cast<double>(layer_count(config));
  EXPECT_NEAR(flops_per_token(config, 512), 3 * (layers * forward.block + forward.head), 1.0);
}

TEST(ActivationBytes, GrowWithTokensAndElements) {
  const ModelConfig config = llama_of_size(1e8);
  const auto bytes = [&](std::uint64_t tokens, std::uint64_t size, std::uint64_t micro_batches,
                         Kept kept = Kept::All) {
    return activation_bytes(
        config,
        {.tokens = tokens, .element_size = size, .micro_batches = micro_batches, .kept = kept});
  };
  const std::uint64_t one = bytes(256, 4, 1);
  EXPECT_EQ(bytes(512, 4, 1), 2 * one);
  EXPECT_LT(bytes(256, 2, 1), one);
  EXPECT_EQ(bytes(256, 4, 3) - one, 2 * 4 * 256 * static_cast<std::uint64_t>(config.hidden));
  // 4 T (4 C + 4 A + 3 I) L, A = C; logits; the ends.
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  const auto inner = static_cast<std::uint64_t>(config.llama.inner);
  const auto layers = static_cast<std::uint64_t>(layer_count(config));
  EXPECT_EQ(one, 4 * 256 * ((8 * hidden + 3 * inner) * layers + 32000 + 4 * hidden + hidden));
  EXPECT_EQ(one - bytes(256, 4, 1, Kept::BlockInputs),
            4 * 256 * ((8 * hidden + 3 * inner) * (layers - 1) - hidden * layers));
  const std::uint64_t together = activation_bytes(config, {.tokens = 256, .at_once = 3});
  EXPECT_EQ(together - one, 2 * (one - 4 * 256 * hidden));  // all but the rows
}

TEST(ActivationBytes, AttentionThatIsAddedUpInPartsTakesTheirMemory) {
  const ModelConfig config = llama_of_size(1e8);
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  const auto heads = static_cast<std::uint64_t>(config.llama.heads);
  const auto inner = static_cast<std::uint64_t>(config.llama.inner);
  const auto sums = [&](std::uint64_t samples) {
    return attention_sums(config, samples, zero3::Determinism::Required);
  };
  EXPECT_EQ(sums(1), (132 + heads - 1) / heads);
  EXPECT_EQ(sums(132), 1u);
  EXPECT_EQ(attention_sums(config, 1, zero3::Determinism::Preferred), 1u);
  for (const Kept kept : {Kept::All, Kept::BlockInputs}) {
    ActivationOptions options{.tokens = 4096, .element_size = 2, .kept = kept};
    const std::uint64_t without = activation_bytes(config, options);
    const std::uint64_t logits = 2 * 4096 * static_cast<std::uint64_t>(config.vocab_size);
    options.sums_of_attention = 1;
    EXPECT_EQ(activation_bytes(config, options), without);  // in the place of the logits
    options.sums_of_attention = 132;
    const std::uint64_t mlp = 3 * inner + 2 * hidden;  // gone by then
    EXPECT_EQ(activation_bytes(config, options),
              without - logits + 4 * 4096 * hidden * 132 - 2 * 4096 * mlp);
  }
}

}  // namespace
}  // namespace artesian::models
