#include "models/gpt2_config.h"

#include <fmt/core.h>

#include <cmath>

#include "models/decoder_config.h"

namespace artesian::models {

Gpt2Config read_gpt2_config(ConfigReader& reader) {
  Gpt2Config config;
  config.vocab_size = reader.integer({"vocab_size"}, vocabulary_range, config.vocab_size);
  config.positions =
      reader.integer({"n_positions", "max_position_embeddings"}, width_range, config.positions);
  reader.ignore_beside("n_ctx", "n_positions", config.positions);  // as in transformers
  config.hidden = reader.integer({"n_embd", "hidden_size"}, width_range, config.hidden);
  config.layers = reader.integer({"n_layer", "num_hidden_layers"}, layer_range, config.layers);
  config.heads = reader.integer({"n_head", "num_attention_heads"}, width_range, config.heads);
  config.inner = reader.integer_or_null("n_inner", width_range, 4 * config.hidden);
  config.activation = read_activation(reader, "activation_function", config.activation);
  config.layer_norm_epsilon =
      reader.number("layer_norm_epsilon", {0.0, 1.0}, config.layer_norm_epsilon);
  config.initializer_range =
      reader.number("initializer_range", {0.0, 1000.0}, config.initializer_range);
  config.scale_attention_weights =
      reader.boolean("scale_attn_weights", config.scale_attention_weights);
  config.scale_attention_by_inverse_layer_index = reader.boolean(
      "scale_attn_by_inverse_layer_idx", config.scale_attention_by_inverse_layer_index);
  config.reorder_and_upcast_attention =
      reader.boolean("reorder_and_upcast_attn", config.reorder_and_upcast_attention);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read_dropout(reader, {"embd_pdrop", "attn_pdrop", "resid_pdrop"}, 0.1);
  read_common_keys(reader);
  reader.ignore({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                 "summary_first_dropout", "predict_special_tokens"});
  if (config.hidden % config.heads != 0) {
    reader.add_fault("n_head", std::to_string(config.heads),
                     fmt::format("a divisor of n_embd, which is {}", config.hidden));
  }
  return config;
}

std::vector<zero3::ParameterSpec> gpt2_parameters(const Gpt2Config& config) {
  ParameterList list;
  const std::int64_t hidden = config.hidden;
  const double deviation = config.initializer_range;
  // The two matrices of a block that write to the residual stream are initialised smaller, so that
  // its variance does not grow with depth (Radford et al. 2019, section 2.3).
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  const auto layer_norm = [&](const std::string& name) {
    list.ones(name + ".weight", hidden);
    list.zeros(name + ".bias", hidden);
  };
  list.matrix("wte.weight", config.vocab_size, hidden, deviation);
  if (config.tie_word_embeddings) list.tiled();
  list.matrix("wpe.weight", config.positions, hidden, deviation);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = fmt::format("h.{}.", layer);
    layer_norm(block + "ln_1");
    list.matrix(block + "attn.c_attn.weight", hidden, 3 * hidden, deviation);  // Conv1D: [in, out]
    list.zeros(block + "attn.c_attn.bias", 3 * hidden);
    list.matrix(block + "attn.c_proj.weight", hidden, hidden, residual);
    list.zeros(block + "attn.c_proj.bias", hidden);
    layer_norm(block + "ln_2");
    list.matrix(block + "mlp.c_fc.weight", hidden, config.inner, deviation);
    list.zeros(block + "mlp.c_fc.bias", config.inner);
    list.matrix(block + "mlp.c_proj.weight", config.inner, hidden, residual);
    list.zeros(block + "mlp.c_proj.bias", hidden);
  }
  layer_norm("ln_f");
  if (!config.tie_word_embeddings) {
    list.matrix("lm_head.weight", config.vocab_size, hidden, deviation);
    list.tiled();
  }
  return list.take();
}

std::vector<zero3::StageSpec> gpt2_stages(const Gpt2Config& config) {
  return decoder_stages({.embedding_parameters = 2,
                         .block_prefix = "h.",
                         .blocks = config.layers,
                         .block_parameters = 12,
                         .head_parameters = 2,
                         .tied = config.tie_word_embeddings});
}

}  // namespace artesian::models
