// Llama as Hugging Face's config.json describes it, and what follows from that without any tensor:
// the list of parameters, how each is initialised, and the stages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/activation_name.h"
#include "models/config_reader.h"
#include "models/rotary_config.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

struct LlamaConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t positions = 2048;  // max_position_embeddings
  std::int64_t hidden = 4096;
  std::int64_t inner = 11008;  // intermediate_size
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  std::int64_t key_value_heads = 32;  // each serves heads / key_value_heads queries
  std::int64_t head = 128;            // head_dim: width of a head
  Activation activation = Activation::Silu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  std::optional<std::int64_t> padding;  // the token whose row starts at 0 and is not looked up
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  RotaryConfig rotary;
};

/// Reads the keys of Llama. Faults and notes stay in `reader`.
LlamaConfig read_llama_config(ConfigReader& reader);

/// In model order: embed_tokens, each block's in the order of their use, norm, and lm_head where it
/// is not tied. A bias follows its matrix.
std::vector<zero3::ParameterSpec> llama_parameters(const LlamaConfig& config);

/// "embed", "layers.0" ... , "head".
std::vector<zero3::StageSpec> llama_stages(const LlamaConfig& config);

}  // namespace artesian::models
