#include "models/llama_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "models/decoder_config.h"
#include "models/joint_linear.h"

namespace artesian::models {
namespace {

/// The default values of transformers' classes for keys that config.json lacks.
LlamaConfig defaults_of(LlamaFamily family) {
  LlamaConfig config;
  config.key_value_heads = config.head = 0;  // derived from other keys
  switch (family) {
    case LlamaFamily::Llama: break;
    case LlamaFamily::Mistral:
      config.inner = 14336;
      config.key_value_heads = 8;
      config.positions = 131072;
      config.window = 4096;
      break;
    case LlamaFamily::Qwen3:
      config.head = 128;
      config.head_norms = true;
      [[fallthrough]];
    case LlamaFamily::Qwen2:
      config.vocab_size = 151936;
      config.inner = 22016;
      config.key_value_heads = 32;
      config.positions = 32768;
      config.attention_bias = family == LlamaFamily::Qwen2;
      config.window = 4096;
      break;
    case LlamaFamily::Phi3:
      config.vocab_size = 32064;
      config.hidden = 3072;
      config.inner = 8192;
      config.positions = 4096;
      config.norm_epsilon = 1e-5;
      config.padding = 32000;
      config.packed = true;
      break;
  }
  return config;
}

void read_heads(ConfigReader& reader, LlamaConfig& config) {
  config.heads = reader.integer({"num_attention_heads"}, width_range, config.heads);
  const bool absent = !reader.has("num_key_value_heads") && config.key_value_heads != 0;
  config.key_value_heads = reader.integer_or_null("num_key_value_heads", width_range,
                                                  absent ? config.key_value_heads : config.heads);
  if (config.hidden % config.heads != 0) {
    reader.add_fault("num_attention_heads", std::to_string(config.heads),
                     fmt::format("a divisor of hidden_size, which is {}", config.hidden));
  }
  if (config.heads % config.key_value_heads != 0) {
    reader.add_fault("num_key_value_heads", std::to_string(config.key_value_heads),
                     fmt::format("a divisor of num_attention_heads, which is {}", config.heads));
  }
  // If hidden_size is not a multiple, only that fault is reported, not its consequences.
  const std::int64_t share = config.hidden % config.heads == 0 ? config.hidden / config.heads : 2;
  const bool own = !reader.has("head_dim") && config.head != 0;
  config.head = reader.integer_or_null("head_dim", width_range, own ? config.head : share);
  if (config.head % 2 != 0) {
    reader.add_fault("head_dim", std::to_string(config.head),
                     "an even number (absent: hidden_size / num_attention_heads)");
    config.head += 1;
  }
}

/// transformers counts a negative value from the end of the vocabulary; old directories have -1.
std::optional<std::int64_t> read_padding(ConfigReader& reader, std::int64_t vocab_size,
                                         std::optional<std::int64_t> absent) {
  if (!reader.has("pad_token_id") && absent.has_value()) {
    if (*absent >= vocab_size) {
      reader.add_fault("pad_token_id", fmt::format("nothing, which is {}", *absent),
                       fmt::format("a token below vocab_size, which is {}", vocab_size));
      return std::nullopt;
    }
    return absent;
  }
  const IntegerRange range{-vocab_size, vocab_size - 1};
  constexpr std::int64_t none = vocabulary_range.maximum;
  const std::int64_t token = reader.integer_or_null("pad_token_id", range, none);
  if (token == none) return std::nullopt;
  return token < 0 ? vocab_size + token : token;
}

std::uint32_t block_parameters(const LlamaConfig& config) {
  return (config.packed ? 6u : 9u) + (config.attention_bias ? 3u : 0u) +
         (config.output_bias ? 1u : 0u) + (config.mlp_bias ? 3u : 0u) +
         (config.head_norms ? 2u : 0u);
}

/// True if some layer uses the sliding window. Types other than sliding and full attention are
/// faults.
bool some_layer_slides(ConfigReader& reader, std::int64_t layers, std::int64_t first) {
  const auto types = reader.texts("layer_types");
  if (!types.has_value()) return first < layers;
  bool slides = false;
  for (const std::string& type : *types) {
    slides = slides || type == "sliding_attention";
    if (type == "full_attention" || type == "sliding_attention") continue;
    reader.add_fault("layer_types", '"' + type + '"',
                     "full_attention or sliding_attention; not supported yet: layer_types " + type);
  }
  if (static_cast<std::int64_t>(types->size()) != layers) {
    reader.add_fault("layer_types", fmt::format("{} layers", types->size()),
                     fmt::format("{}, as num_hidden_layers", layers));
  }
  return slides;
}

void read_window(ConfigReader& reader, LlamaFamily family, LlamaConfig& config) {
  if (family == LlamaFamily::Llama) return;
  const bool absent = !reader.has("sliding_window");
  config.window = reader.integer_or_null("sliding_window", width_range, absent ? config.window : 0);
  if (family != LlamaFamily::Qwen2 && family != LlamaFamily::Qwen3) {
    reader.refuse_unless("layer_types", {});
    return;
  }
  const bool used = reader.boolean("use_sliding_window", false);
  const std::int64_t first = reader.integer({"max_window_layers"}, {0, layer_range.maximum}, 28);
  const bool has_window = used && config.window != 0;
  const bool slides = some_layer_slides(reader, config.layers, has_window ? first : config.layers);
  if (slides && !has_window) {
    reader.add_fault("layer_types", "sliding_attention",
                     "full_attention where use_sliding_window or sliding_window says no");
  }
  if (!slides || !has_window) config.window = 0;
}

void read_biases(ConfigReader& reader, LlamaFamily family, LlamaConfig& config) {
  if (family == LlamaFamily::Llama || family == LlamaFamily::Qwen3) {
    config.attention_bias = reader.boolean("attention_bias", false);
    config.output_bias = config.attention_bias;
  }
  if (family == LlamaFamily::Llama) config.mlp_bias = reader.boolean("mlp_bias", false);
}

}  // namespace

LlamaConfig read_llama_config(ConfigReader& reader, LlamaFamily family) {
  LlamaConfig config = defaults_of(family);
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
  config.padding = read_padding(reader, config.vocab_size, config.padding);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read_biases(reader, family, config);
  read_window(reader, family, config);
  const bool phi = family == LlamaFamily::Phi3;
  config.rotary =
      read_rotary_config(reader, {.head = config.head, .positions = config.positions, .phi3 = phi});
  if (phi) {
    read_dropout(reader, {"attention_dropout", "resid_pdrop", "embd_pdrop"}, 0.0);
  } else {
    read_dropout(reader, {"attention_dropout"}, 0.0);
  }
  read_common_keys(reader);
  reader.ignore({"pretraining_tp"});  // in old versions: computes the same products in pieces
  return config;
}

std::int64_t longest_sequence(const LlamaConfig& config) {
  const std::int64_t positions = config.rotary.longest();
  return config.window == 0 ? positions : std::min(positions, config.window);
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
    const std::string block = fmt::format("layers.{}.", layer);
    list.ones(block + "input_layernorm.weight", hidden);
    if (config.packed) {
      linear(block + "self_attn.qkv_proj", queries + 2 * keys, hidden, false);
    } else {
      linear(block + "self_attn.q_proj", queries, hidden, config.attention_bias);
      if (config.head_norms) list.ones(block + "self_attn.q_norm.weight", config.head);
      linear(block + "self_attn.k_proj", keys, hidden, config.attention_bias);
      if (config.head_norms) list.ones(block + "self_attn.k_norm.weight", config.head);
      linear(block + "self_attn.v_proj", keys, hidden, config.attention_bias);
    }
    linear(block + "self_attn.o_proj", hidden, queries, config.output_bias);
    list.ones(block + "post_attention_layernorm.weight", hidden);
    if (config.packed) {
      linear(block + "mlp.gate_up_proj", 2 * config.inner, hidden, false);
    } else {
      linear(block + "mlp.gate_proj", config.inner, hidden, config.mlp_bias);
      linear(block + "mlp.up_proj", config.inner, hidden, config.mlp_bias);
    }
    linear(block + "mlp.down_proj", hidden, config.inner, config.mlp_bias);
  }
  list.ones("norm.weight", hidden);
  if (!config.tie_word_embeddings) {
    linear("lm_head", config.vocab_size, hidden, false);
    list.tiled();
  }
  return list.take();
}

bool joins_heads(const LlamaConfig& config) noexcept {
  return config.packed ||
         (!config.attention_bias && !config.head_norms &&
          lies_before_others(config.heads * config.head * config.hidden) &&
          lies_before_others(config.key_value_heads * config.head * config.hidden));
}

bool joins_gate(const LlamaConfig& config) noexcept {
  return config.packed || (!config.mlp_bias && lies_before_others(config.inner * config.hidden));
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
