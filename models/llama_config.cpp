#include "models/llama_config.h"

#include "models/decoder_config.h"

namespace artesian::models {
namespace {

void read_heads(ConfigReader& reader, LlamaConfig& config) {
  config.heads = reader.integer({"num_attention_heads"}, width_range, config.heads);
  config.key_value_heads = reader.integer_or_null("num_key_value_heads", width_range, config.heads);
  if (config.hidden % config.heads != 0) {
    reader.add_fault("num_attention_heads", std::to_string(config.heads),
                     "a divisor of hidden_size, which is " + std::to_string(config.hidden));
  }
  if (config.heads % config.key_value_heads != 0) {
    reader.add_fault("num_key_value_heads", std::to_string(config.key_value_heads),
                     "a divisor of num_attention_heads, which is " + std::to_string(config.heads));
  }
  // Where hidden_size is no multiple, that is the fault to tell, and not what follows from it.
  const std::int64_t share = config.hidden % config.heads == 0 ? config.hidden / config.heads : 2;
  config.head = reader.integer_or_null("head_dim", width_range, share);
  if (config.head % 2 != 0) {
    reader.add_fault("head_dim", std::to_string(config.head),
                     "an even number (absent: hidden_size / num_attention_heads)");
    config.head += 1;
  }
}

/// transformers counts a negative one from the end of the vocabulary: old directories have -1.
std::optional<std::int64_t> read_padding(ConfigReader& reader, std::int64_t vocab_size) {
  const IntegerRange range{-vocab_size, vocab_size - 1};
  constexpr std::int64_t none = vocabulary_range.maximum;
  const std::int64_t token = reader.integer_or_null("pad_token_id", range, none);
  if (token == none) return std::nullopt;
  return token < 0 ? vocab_size + token : token;
}

std::uint32_t block_parameters(const LlamaConfig& config) {
  return 9u + (config.attention_bias ? 4u : 0u) + (config.mlp_bias ? 3u : 0u);
}

}  // namespace

LlamaConfig read_llama_config(ConfigReader& reader) {
  LlamaConfig config;
  config.vocab_size = reader.integer({"vocab_size"}, vocabulary_range, config.vocab_size);
  config.positions = reader.integer({"max_position_embeddings"}, width_range, config.positions);
  config.hidden = reader.integer({"hidden_size"}, width_range, config.hidden);
  config.inner = reader.integer({"intermediate_size"}, width_range, config.inner);
  config.layers = reader.integer({"num_hidden_layers"}, layer_range, config.layers);
  read_heads(reader, config);
  config.activation = read_activation(reader, "hidden_act", config.activation);
  config.norm_epsilon = reader.number("rms_norm_eps", {0.0, 1.0}, config.norm_epsilon);
  config.initializer_range =
      reader.number("initializer_range", {0.0, 1.0}, config.initializer_range);
  if (config.initializer_range == 0.0) config.initializer_range = 0.02;  // as in transformers
  config.padding = read_padding(reader, config.vocab_size);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.attention_bias = reader.boolean("attention_bias", config.attention_bias);
  config.mlp_bias = reader.boolean("mlp_bias", config.mlp_bias);
  config.rotary = read_rotary_config(reader, config.head, config.positions);
  read_dropout(reader, {"attention_dropout"}, 0.0);
  read_common_keys(reader);
  reader.ignore({"pretraining_tp"});  // the same products, cut in pieces, in old versions
  return config;
}

std::vector<zero3::ParameterSpec> llama_parameters(const LlamaConfig& config) {
  ParameterList list;
  const auto linear = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                          bool bias) {
    list.matrix(name + ".weight", rows, columns, config.initializer_range);
    if (bias) list.zeros(name + ".bias", rows);
  };
  const std::int64_t hidden = config.hidden;
  const std::int64_t queries = config.heads * config.head;
  const std::int64_t keys = config.key_value_heads * config.head;
  list.matrix("embed_tokens.weight", config.vocab_size, hidden, config.initializer_range);
  if (config.padding.has_value()) list.zero_row(*config.padding);
  if (config.tie_word_embeddings) list.tiled();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "layers." + std::to_string(layer) + ".";
    list.ones(block + "input_layernorm.weight", hidden);
    linear(block + "self_attn.q_proj", queries, hidden, config.attention_bias);
    linear(block + "self_attn.k_proj", keys, hidden, config.attention_bias);
    linear(block + "self_attn.v_proj", keys, hidden, config.attention_bias);
    linear(block + "self_attn.o_proj", hidden, queries, config.attention_bias);
    list.ones(block + "post_attention_layernorm.weight", hidden);
    linear(block + "mlp.gate_proj", config.inner, hidden, config.mlp_bias);
    linear(block + "mlp.up_proj", config.inner, hidden, config.mlp_bias);
    linear(block + "mlp.down_proj", hidden, config.inner, config.mlp_bias);
  }
  list.ones("norm.weight", hidden);
  if (!config.tie_word_embeddings) {
    linear("lm_head", config.vocab_size, hidden, false);
    list.tiled();
  }
  return list.take();
}

std::vector<zero3::StageSpec> llama_stages(const LlamaConfig& config) {
  return decoder_stages({.embedding_parameters = 1,
                         .block_prefix = "layers.",
                         .blocks = config.layers,
                         .block_parameters = block_parameters(config),
                         .head_parameters = 1,
                         .tied = config.tie_word_embeddings});
}

}  // namespace artesian::models
