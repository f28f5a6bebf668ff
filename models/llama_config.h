// Llama and its relatives as described by Hugging Face's config.json: the list of parameters, their
// initialisation, and the stages, without tensors. All consist of blocks of RMSNorm, grouped
// attention with rotary positions and a gated MLP; they differ in biases, in norms of queries and
// keys, in packed matrices, and in their defaults.
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
  std::int64_t key_value_heads = 32;  // each serves heads / key_value_heads query heads
  std::int64_t head = 128;            // head_dim: width of a head
  Activation activation = Activation::Silu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  std::optional<std::int64_t>
      padding;  // the padding token, whose row starts at 0 and is not looked up
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // biases of queries, keys and values
  bool output_bias = false;     // bias of attention's output
  bool mlp_bias = false;
  bool head_norms = false;  // RMSNorm of each head's queries and keys, before rotation
  bool packed = false;      // queries, keys and values are one matrix; so are gate and up
  /// Sliding window: each position attends to itself and earlier ones, this many in all. Longer
  /// sequences are not implemented. 0: no window.
  std::int64_t window = 0;
  RotaryConfig rotary;

  bool operator==(const LlamaConfig&) const = default;
};

enum class LlamaFamily : std::uint8_t { Llama, Mistral, Qwen2, Qwen3, Phi3 };

/// Reads the keys of one family. Faults and notes are added to `reader`.
LlamaConfig read_llama_config(ConfigReader& reader, LlamaFamily family = LlamaFamily::Llama);

/// The longest sequence that is computed as in transformers.
std::int64_t longest_sequence(const LlamaConfig& config);

/// In model order: embed_tokens, each block's in the order of their use, norm, and lm_head unless
/// it is tied. A bias follows its matrix.
std::vector<zero3::ParameterSpec> llama_parameters(const LlamaConfig& config);

/// True if queries, keys and values are one product: they are one matrix, or their matrices lie
/// side by side.
bool joins_heads(const LlamaConfig& config) noexcept;

/// The same for gate and up.
bool joins_gate(const LlamaConfig& config) noexcept;

/// "embed", "layers.0" ... , "head".
std::vector<zero3::StageSpec> llama_stages(const LlamaConfig& config);

}  // namespace artesian::models
