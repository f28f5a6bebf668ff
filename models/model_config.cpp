#include "models/model_config.h"

#include <nlohmann/json.hpp>

#include "models/file_io.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t config_size_max = 16u << 20;

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
  ARTESIAN_TRY(file, InputFile::open(path));
  if (file.size() > config_size_max) return config_error(path, "larger than 16 MiB");
  std::string text(file.size(), '\0');
  ARTESIAN_TRY_VOID(file.read_at(text.data(), text.size(), 0));
  return parse_model_config(text, path);
}

std::vector<zero3::ParameterSpec> model_parameters(const ModelConfig& config) {
  ARTESIAN_CHECK(config.model_type == "gpt2");
  return gpt2_parameters(config.gpt2);
}

}  // namespace artesian::models
