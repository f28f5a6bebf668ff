#include "models/gpt2.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/check.h"
#include "models/activation.h"
#include "models/attention.h"
#include "models/linear_cross_entropy.h"

namespace artesian::models {
namespace {

/// Indices of a block's parameters within its stage, in the order of gpt2_parameters().
enum BlockParameter : std::size_t {
  Norm1Weight,
  Norm1Bias,
  AttentionInWeight,
  AttentionInBias,
  AttentionOutWeight,
  AttentionOutBias,
  Norm2Weight,
  Norm2Bias,
  MlpInWeight,
  MlpInBias,
  MlpOutWeight,
  MlpOutBias,
  BlockParameterCount,
};

/// Shape: input: [samples, length, in]; weight: [in, out] (transformers' Conv1D); bias: [out].
at::Tensor project(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor flat = at::addmm(bias, input.reshape({-1, input.size(2)}), weight);
  return flat.view({input.size(0), input.size(1), weight.size(1)});
}

/// Computes scores and softmax in fp32 for inputs of any dtype: reorder_and_upcast_attn. Shape:
/// query, key, value, result: [samples, heads, length, head].
at::Tensor attend_upcast(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         double scale) {
  at::Tensor scores = at::matmul(query.to(at::kFloat), key.to(at::kFloat).transpose(2, 3)) * scale;
  const at::Tensor future =
      at::ones({query.size(2), query.size(2)}, query.options().dtype(at::kBool)).triu(1);
  scores = scores.masked_fill(future, -INFINITY);
  return at::matmul(at::softmax(scores, -1).to(value.scalar_type()), value);
}

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config)
    : config_(config), parameters_(gpt2_parameters(config)), stages_(gpt2_stages(config)) {}

/// Shape: joined: [samples, length, 3 * hidden] (query, key, value side by side); result: [samples,
/// length, hidden].
at::Tensor Gpt2::attend(std::size_t layer, const at::Tensor& joined) const {
  const std::int64_t head = config_.hidden / config_.heads;
  double scale = config_.scale_attention_weights ? 1.0 / std::sqrt(static_cast<double>(head)) : 1.0;
  if (config_.scale_attention_by_inverse_layer_index) scale /= static_cast<double>(layer + 1);
  const auto parts = joined.split(config_.hidden, 2);
  const at::Tensor query = split_heads(parts[0], config_.heads);
  const at::Tensor key = split_heads(parts[1], config_.heads);
  const at::Tensor value = split_heads(parts[2], config_.heads);
  const bool upcast = config_.reorder_and_upcast_attention && query.scalar_type() != at::kFloat;
  return join_heads(upcast ? attend_upcast(query, key, value, scale)
                           : causal_attention(query, key, value, scale));
}

/// Shape: input, result: [samples, length, hidden]. parameters: as in BlockParameter.
at::Tensor Gpt2::block(std::size_t layer, const at::Tensor& input,
                       const std::vector<at::Tensor>& parameters) const {
  ARTESIAN_CHECK(parameters.size() == BlockParameterCount, parameters.size());
  const auto& p = parameters;
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(x, {config_.hidden}, weight, bias, config_.layer_norm_epsilon);
  };
  const at::Tensor joined =
      project(norm(input, p[Norm1Weight], p[Norm1Bias]), p[AttentionInWeight], p[AttentionInBias]);
  const at::Tensor attended =
      input + project(attend(layer, joined), p[AttentionOutWeight], p[AttentionOutBias]);
  const at::Tensor inner =
      project(norm(attended, p[Norm2Weight], p[Norm2Bias]), p[MlpInWeight], p[MlpInBias]);
  return attended + project(activate(config_.activation, inner), p[MlpOutWeight], p[MlpOutBias]);
}

at::Tensor Gpt2::forward(std::size_t stage, const at::Tensor& input,
                         const std::vector<at::Tensor>& parameters, const zero3::Batch& batch) {
  ARTESIAN_CHECK(stage < stages_.size(), stage, stages_.size());
  ARTESIAN_CHECK(input.dim() == 3 && input.size(2) == config_.hidden, input.dim());
  if (stage == 0) {
    ARTESIAN_CHECK(parameters.size() == 1 && input.size(1) <= config_.positions, input.size(1));
    return input + parameters[0].narrow(0, 0, input.size(1));
  }
  if (stage + 1 < stages_.size()) return block(stage - 1, input, parameters);
  ARTESIAN_CHECK(parameters.size() == 3, parameters.size());
  const at::Tensor last = at::layer_norm(input, {config_.hidden}, parameters[0], parameters[1],
                                         config_.layer_norm_epsilon);
  return linear_cross_entropy(last.view({-1, config_.hidden}), parameters[2],
                              batch.targets.reshape({-1}), {batch.gradients, 2},
                              batch.loss_multiplier);
}

}  // namespace artesian::models
