#include "models/llama.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/check.h"
#include "models/activation.h"
#include "models/attention.h"
#include "models/joint_linear.h"
#include "models/linear_cross_entropy.h"
#include "models/rms_norm.h"
#include "models/swiglu.h"

namespace artesian::models {
namespace {

/// Returns a block's parameters one by one, in the order of llama_parameters(), which is the order
/// of their use.
class InOrder {
 public:
  explicit InOrder(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  const at::Tensor& next() {
    ARTESIAN_CHECK(next_ < parameters_.size(), next_);
    return parameters_[next_++];
  }
  /// Returns input weight^T, plus the bias if there is one. Shape: weight: [out, in].
  at::Tensor linear(const at::Tensor& input, bool bias) {
    const at::Tensor& weight = next();
    return bias ? at::linear(input, weight, next()) : at::linear(input, weight);
  }
  /// Not in the destructor, as LibTorch may throw before, and the engine remains usable.
  void check_all_used() const {
    ARTESIAN_CHECK(next_ == parameters_.size(), next_, parameters_.size());
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  std::size_t next_ = 0;
};

/// Shape: query: [samples, heads, length, head_size]; key, value: the same with key_value_heads.
struct Heads {
  at::Tensor query, key, value;
};

/// Splits heads. Shape: tokens: [samples, length, ...]; result: [samples, heads, length, head].
at::Tensor apart(const LlamaConfig& config, const at::Tensor& tokens, std::int64_t heads) {
  return tokens.view({tokens.size(0), tokens.size(1), heads, config.head}).transpose(1, 2);
}

Heads own_heads(const LlamaConfig& config, InOrder& p, Rotary& rotary, const at::Tensor& input) {
  const auto turned = [&](std::int64_t heads) {
    at::Tensor tokens = p.linear(input, config.attention_bias);
    if (config.head_norms) {
      tokens = rms_norm(tokens.view({tokens.size(0), tokens.size(1), heads, config.head}), p.next(),
                        config.norm_epsilon);
    }
    return apart(config, rotary.turn(tokens, heads), heads);
  };
  Heads heads;
  heads.query = turned(config.heads);
  heads.key = turned(config.key_value_heads);
  heads.value = apart(config, p.linear(input, config.attention_bias), config.key_value_heads);
  return heads;
}

/// Splits a packed product, and rotates queries and keys. Shape: all: [samples, length, queries,
/// keys and values].
Heads packed_heads(const LlamaConfig& config, Rotary& rotary, const at::Tensor& all) {
  const std::int64_t queries = config.heads * config.head;
  const std::int64_t keys = config.key_value_heads * config.head;
  const auto parts = rotary.turn(all, config.heads + config.key_value_heads)
                         .split_with_sizes({queries, keys, keys}, 2);
  return {split_heads(parts[0], config.heads), split_heads(parts[1], config.key_value_heads),
          split_heads(parts[2], config.key_value_heads)};
}

Heads heads_of(const LlamaConfig& config, InOrder& p, Rotary& rotary, const at::Tensor& input) {
  if (config.packed) return packed_heads(config, rotary, p.linear(input, false));
  if (!joins_heads(config)) return own_heads(config, p, rotary, input);
  const at::Tensor& query = p.next();
  const at::Tensor& key = p.next();
  return packed_heads(config, rotary, joint_linear(input, {query, key, p.next()}));
}

/// The gated product. Shape of the result: [samples, length, intermediate_size].
at::Tensor gated(const LlamaConfig& config, InOrder& p, const at::Tensor& input) {
  const bool fused = config.activation == Activation::Silu;
  if (joins_gate(config)) {
    const auto joint = [&] {
      const at::Tensor& gate = p.next();
      return joint_linear(input, {gate, p.next()});
    };
    const at::Tensor both = config.packed ? p.linear(input, false) : joint();
    if (fused) return packed_swiglu(both);
    return activate(config.activation, both.narrow(2, 0, config.inner)) *
           both.narrow(2, config.inner, config.inner);
  }
  const at::Tensor gate = p.linear(input, config.mlp_bias);
  const at::Tensor up = p.linear(input, config.mlp_bias);
  return fused ? swiglu(gate, up) : activate(config.activation, gate) * up;
}

}  // namespace

Llama::Llama(const LlamaConfig& config)
    : config_(config),
      parameters_(llama_parameters(config)),
      stages_(llama_stages(config)),
      rotary_(config.rotary) {}

/// Padding is looked up like any token, but its row gets no gradient.
at::Tensor Llama::embed(const at::Tensor& rows, const at::Tensor& ids) const {
  if (!config_.padding.has_value()) return rows.view_as(rows);
  const at::Tensor padding = ids.eq(*config_.padding).unsqueeze(2).to(rows.device());
  return at::where(padding, rows.detach(), rows);
}

/// Shape: input, result: [samples, length, hidden].
at::Tensor Llama::block(const at::Tensor& input, const std::vector<at::Tensor>& parameters) {
  InOrder p(parameters);
  const at::Tensor normed = rms_norm(input, p.next(), config_.norm_epsilon);
  const Heads heads = heads_of(config_, p, rotary_, normed);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head));
  const at::Tensor mixed = join_heads(causal_attention(heads.query, heads.key, heads.value, scale));
  const at::Tensor attended = input + p.linear(mixed, config_.output_bias);
  const at::Tensor inner = rms_norm(attended, p.next(), config_.norm_epsilon);
  at::Tensor output = attended + p.linear(gated(config_, p, inner), config_.mlp_bias);
  p.check_all_used();
  return output;
}

at::Tensor Llama::forward(std::size_t stage, const at::Tensor& input,
                          const std::vector<at::Tensor>& parameters, const zero3::Batch& batch) {
  ARTESIAN_CHECK(stage < stages_.size(), stage, stages_.size());
  ARTESIAN_CHECK(input.dim() == 3 && input.size(2) == config_.hidden, input.dim());
  if (stage == 0) return embed(input, batch.input);
  if (stage + 1 < stages_.size()) return block(input, parameters);
  ARTESIAN_CHECK(parameters.size() == 2, parameters.size());
  const at::Tensor last = rms_norm(input, parameters[0], config_.norm_epsilon);
  return linear_cross_entropy(last.view({-1, config_.hidden}), parameters[1],
                              batch.targets.reshape({-1}), {batch.gradients, 1},
                              batch.loss_multiplier);
}

}  // namespace artesian::models
