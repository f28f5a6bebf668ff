#include "models/model_changes.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "models/model_config.h"

namespace artesian::models {
namespace {

using Json = nlohmann::ordered_json;

/// Reads a configuration, without keys that do not affect a model whose weights exist.
std::optional<ModelConfig> read(const std::string& text) {
  auto parsed = parse_model_config(text, "config.json");
  if (!parsed.has_value()) return std::nullopt;
  ModelConfig config = std::move(parsed).value();
  config.notes.clear();
  config.gpt2.initializer_range = config.llama.initializer_range = 0.0;
  // Only a limit, without effect on results.
  if (config.llama.rotary.scaling == RotaryScaling::None) {
    config.positions_max = config.llama.positions = config.llama.rotary.positions = 0;
    config.positions_limit.clear();
  }
  return config;
}

std::string text_of(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return "not set";
  const std::string text = found->dump(-1, ' ', true);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

}  // namespace

std::vector<std::string> model_changes(std::string_view before, std::string_view after) {
  const auto old_config = read(std::string(before));
  const auto new_config = read(std::string(after));
  if (!old_config.has_value() || !new_config.has_value() || *old_config == *new_config) return {};
  const Json old_object = Json::parse(before);
  const Json new_object = Json::parse(after);
  std::set<std::string> keys;
  for (const auto& [key, value] : old_object.items()) keys.insert(key);
  for (const auto& [key, value] : new_object.items()) keys.insert(key);
  std::vector<std::string> changes;
  std::vector<std::string> all;  // for keys that only have an effect together
  for (const std::string& key : keys) {
    const std::string was = text_of(old_object, key);
    const std::string is = text_of(new_object, key);
    if (was == is) continue;
    all.push_back(key + " was " + was + ", is " + is);
    Json one = new_object;
    one.erase(key);
    if (old_object.contains(key)) one[key] = old_object.at(key);
    const auto config = read(one.dump());
    if (!config.has_value() || *config != *new_config) changes.push_back(all.back());
  }
  return changes.empty() ? all : changes;
}

}  // namespace artesian::models
