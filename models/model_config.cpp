#include "models/model_config.h"

#include <nlohmann/json.hpp>

#include "models/file_io.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t config_size_max = 16u << 20;
constexpr std::string_view gpt2_prefix = "transformer.";
constexpr std::string_view gpt2_head_name = "lm_head.weight";

Error config_error(const std::string& path, const std::string& text) {
  return make_error(ErrorCode::Invalid, "model config: " + path + ": " + text);
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
    return config_error(path, "model_type: missing or no string, allowed \"gpt2\"");
  }
  if (*type != "gpt2") {
    return config_error(path, "model_type: got " + type->dump(-1, ' ', true) +
                                  ", allowed \"gpt2\"; other architectures are not supported yet");
  }
  ConfigReader reader(object, path);
  ModelConfig config;
  config.model_type = "gpt2";
  config.gpt2 = read_gpt2_config(reader);
  config.vocab_size = config.gpt2.vocab_size;
  config.positions_max = config.gpt2.positions;
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
    return error;
  }
  const InputFile file = std::move(opened).value();
  if (file.size() > config_size_max) return config_error(path, "larger than 16 MiB");
  std::string text(file.size(), '\0');
  ARTESIAN_TRY_VOID(file.read_at(text.data(), text.size(), 0));
  return parse_model_config(text, path);
}

std::vector<zero3::ParameterSpec> model_parameters(const ModelConfig& config) {
  ARTESIAN_CHECK(config.model_type == "gpt2");
  return gpt2_parameters(config.gpt2);
}

std::string_view parameter_name(std::string_view saved_name) {
  if (saved_name.starts_with(gpt2_prefix)) saved_name.remove_prefix(gpt2_prefix.size());
  return saved_name;
}

std::string saved_name(const ModelConfig& config, std::string_view parameter_name) {
  ARTESIAN_CHECK(config.model_type == "gpt2");
  if (parameter_name == gpt2_head_name) return std::string(parameter_name);
  return std::string(gpt2_prefix) + std::string(parameter_name);
}

bool is_harmless_tensor(const ModelConfig& config, std::string_view parameter_name) {
  if (config.gpt2.tie_word_embeddings && parameter_name == gpt2_head_name) return true;
  return parameter_name.starts_with("h.") &&
         (parameter_name.ends_with(".attn.bias") || parameter_name.ends_with(".attn.masked_bias"));
}

}  // namespace artesian::models
