// The config.json of a Hugging Face directory. Its model_type decides the architecture; values that
// would change the result but are not implemented are refused by name. Independent of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "models/gpt2_config.h"
#include "models/llama_config.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

struct ModelConfig {
  std::string model_type;  // "gpt2", or one of Llama's family; tells which of the structs is set
  bool is_llama() const noexcept { return model_type != "gpt2"; }
  std::int64_t vocab_size = 0;
  std::int64_t positions_max = 0;  // longest sequence that the model takes
  // description of positions_max, for messages
  std::string positions_limit = "the model's positions";
  std::int64_t hidden = 0;  // width of the activations between stages
  bool tied = false;        // the head uses the embedding's table
  Gpt2Config gpt2;
  LlamaConfig llama;
  std::vector<std::string> notes;  // notes for the user, one line each

  bool operator==(const ModelConfig&) const = default;
};

/// Reads `directory`/config.json. Errors: Io; Invalid, one line per fault, at most 5.
Result<ModelConfig> read_model_config(const std::string& directory);

/// As read_model_config, from the text of a file that messages call `path`.
Result<ModelConfig> parse_model_config(std::string_view text, const std::string& path);

/// In model order, which is the order of Module::parameters().
std::vector<zero3::ParameterSpec> model_parameters(const ModelConfig& config);

/// Stages of the model: "embed", its blocks, "head".
std::vector<zero3::StageSpec> model_stages(const ModelConfig& config);

/// Number of blocks.
std::int64_t layer_count(const ModelConfig& config);

/// A checkpoint's parameter name without the prefix of the class that saved it:
/// "transformer.wte.weight" -> "wte.weight", "model.norm.weight" -> "norm.weight".
std::string_view parameter_name(const ModelConfig& config, std::string_view saved_name);

/// The inverse: the name under which transformers saves a parameter of the model with its head.
std::string saved_name(const ModelConfig& config, std::string_view parameter_name);

/// The parameter that looks up the tokens: "wte.weight" or "embed_tokens.weight".
std::string_view embedding_name(const ModelConfig& config);

/// The parameter that makes logits. If `tied`, the model has no such parameter, but a checkpoint
/// may.
constexpr std::string_view head_name = "lm_head.weight";

/// True if a checkpoint may hold this tensor although the model has no such parameter: buffers that
/// old versions of transformers saved.
bool is_harmless_tensor(const ModelConfig& config, std::string_view parameter_name);

}  // namespace artesian::models
