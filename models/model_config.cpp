#include "models/model_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/file_io.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t config_size_max = 16u << 20;
constexpr const char* allowed_types =
    R"(allowed "gpt2", "llama", "mistral", "qwen2", "qwen3" or "phi3")";

/// The family that a model_type names, or nothing.
std::optional<LlamaFamily> llama_family(std::string_view type) {
  if (type == "llama") return LlamaFamily::Llama;
  if (type == "mistral") return LlamaFamily::Mistral;
  if (type == "qwen2") return LlamaFamily::Qwen2;
  if (type == "qwen3") return LlamaFamily::Qwen3;
  if (type == "phi3") return LlamaFamily::Phi3;
  return std::nullopt;
}

Error config_error(const std::string& path, const std::string& text) {
  return make_error(ErrorCode::Invalid, "model config: " + path + ": " + text);
}

void read_gpt2(ConfigReader& reader, ModelConfig& config) {
  const Gpt2Config& gpt2 = config.gpt2 = read_gpt2_config(reader);
  config.vocab_size = gpt2.vocab_size;
  config.positions_max = gpt2.positions;
  config.hidden = gpt2.hidden;
  config.tied = gpt2.tie_word_embeddings;
}

void read_llama(ConfigReader& reader, ModelConfig& config, LlamaFamily family) {
  const LlamaConfig& llama = config.llama = read_llama_config(reader, family);
  config.vocab_size = llama.vocab_size;
  config.positions_max = longest_sequence(llama);
  if (config.positions_max < llama.rotary.longest()) {
    config.positions_limit = "the model's sliding_window; not supported yet: sequences beyond it";
  }
  config.hidden = llama.hidden;
  config.tied = llama.tie_word_embeddings;
}

/// Returns the name of LlamaModel or GPT2Model inside the class with the head.
std::string_view body_prefix(const ModelConfig& config) {
  return config.is_llama() ? "model." : "transformer.";
}

/// True if it looks like "gpt2" or "owner/name" on the Hugging Face hub, and nothing local has that
/// name.
bool is_hub_name(const std::string& directory) {
  std::error_code failed;
  const bool plain = directory.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                         "-_./") == std::string::npos;
  const auto slashes = std::count(directory.begin(), directory.end(), '/');
  return plain && slashes <= 1 && !directory.starts_with('/') && !directory.starts_with('.') &&
         !directory.ends_with('/') && !std::filesystem::exists(directory, failed);
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, const std::string& path) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return config_error(path, std::string("not JSON: ") + error.what());
  }
  if (!object.is_object()) return config_error(path, "got no JSON object, allowed an object");
  const auto type = object.find("model_type");
  if (type == object.end() || !type->is_string()) {
    return config_error(path, std::string("model_type: missing or no string, ") + allowed_types);
  }
  ModelConfig config;
  config.model_type = type->get<std::string>();
  ConfigReader reader(object, path);
  if (config.model_type == "gpt2") {
    read_gpt2(reader, config);
  } else if (const auto family = llama_family(config.model_type); family.has_value()) {
    read_llama(reader, config, *family);
  } else {
    const std::string got = type->dump(-1, ' ', true);
    return config_error(path, "model_type: got " + got + ", " + allowed_types +
                                  "; not supported yet: model_type " + got);
  }
  config.notes = reader.take_notes();
  ARTESIAN_TRY_VOID(reader.finish());
  return config;
}

Result<ModelConfig> read_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  auto opened = InputFile::open(path);
  if (!opened.has_value()) {
    Error error = std::move(opened).error();
    error.message += " (give the folder of a Hugging Face model, which holds config.json)";
    if (is_hub_name(directory)) {
      error.message += "; a name of the hub is downloaded first: hf download " + directory +
                       " --local-dir DIR, then --model DIR";
    }
    return error;
  }
  const InputFile file = std::move(opened).value();
  if (file.size() > config_size_max) return config_error(path, "larger than 16 MiB");
  std::string text(file.size(), '\0');
  ARTESIAN_TRY_VOID(file.read_at(text.data(), text.size(), 0));
  return parse_model_config(text, path);
}

std::vector<zero3::ParameterSpec> model_parameters(const ModelConfig& config) {
  if (config.is_llama()) return llama_parameters(config.llama);
  ARTESIAN_CHECK(config.model_type == "gpt2");
  return gpt2_parameters(config.gpt2);
}

std::vector<zero3::StageSpec> model_stages(const ModelConfig& config) {
  if (config.is_llama()) return llama_stages(config.llama);
  ARTESIAN_CHECK(config.model_type == "gpt2");
  return gpt2_stages(config.gpt2);
}

std::int64_t layer_count(const ModelConfig& config) {
  return config.is_llama() ? config.llama.layers : config.gpt2.layers;
}

std::string_view parameter_name(const ModelConfig& config, std::string_view saved_name) {
  const std::string_view prefix = body_prefix(config);
  if (saved_name.starts_with(prefix)) saved_name.remove_prefix(prefix.size());
  return saved_name;
}

std::string saved_name(const ModelConfig& config, std::string_view parameter_name) {
  // The head's name has no prefix.
  if (parameter_name == head_name) return std::string(parameter_name);
  return std::string(body_prefix(config)) + std::string(parameter_name);
}

std::string_view embedding_name(const ModelConfig& config) {
  return config.is_llama() ? "embed_tokens.weight" : "wte.weight";
}

bool is_harmless_tensor(const ModelConfig& config, std::string_view parameter_name) {
  if (config.is_llama()) return parameter_name.ends_with("rotary_emb.inv_freq");
  return parameter_name.starts_with("h.") &&
         (parameter_name.ends_with(".attn.bias") || parameter_name.ends_with(".attn.masked_bias"));
}

}  // namespace artesian::models
