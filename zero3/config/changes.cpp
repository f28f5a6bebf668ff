#include "zero3/config/changes.h"

#include <array>
#include <map>
#include <string_view>

namespace artesian::zero3 {
namespace {

constexpr std::array<std::string_view, 14> computing{"train_batch_size",
                                                     "train_micro_batch_size_per_gpu",
                                                     "gradient_accumulation_steps",
                                                     "gradient_clipping",
                                                     "optimizer",
                                                     "scheduler",
                                                     "fp16",
                                                     "bf16",
                                                     "bfloat16",
                                                     "data_types",
                                                     "communication_data_type",
                                                     "artesian.compute_dtype",
                                                     "artesian.reduction",
                                                     "artesian.determinism"};

bool bears_on_a_step(std::string_view path) noexcept {
  for (const std::string_view key : computing) {
    if (path == key) return true;
    if (path.starts_with(key) && path[key.size()] == '.') return true;
  }
  return false;
}

/// Collects every value that is not an object, by its path.
void collect(const JsonValue& value, const std::string& path,
             std::map<std::string, std::string>& values) {
  if (value.kind != JsonValue::Kind::Object) {
    if (bears_on_a_step(path)) values.emplace(path, print_json(value));
    return;
  }
  for (const auto& [name, member] : value.members) {
    collect(member, path.empty() ? name : path + "." + name, values);
  }
}

std::string text_of(const std::map<std::string, std::string>& values, const std::string& path) {
  const auto found = values.find(path);
  return found == values.end() ? "not set" : found->second;
}

}  // namespace

std::vector<std::string> config_changes(const JsonValue& before, const JsonValue& after) {
  std::map<std::string, std::string> old_values;
  std::map<std::string, std::string> new_values;
  collect(before, "", old_values);
  collect(after, "", new_values);
  auto all = old_values;
  all.insert(new_values.begin(), new_values.end());
  std::vector<std::string> changes;
  for (const auto& [path, ignored] : all) {
    const std::string was = text_of(old_values, path);
    const std::string is = text_of(new_values, path);
    if (was != is) changes.push_back(path + " was " + was + ", is " + is);
  }
  return changes;
}

}  // namespace artesian::zero3
