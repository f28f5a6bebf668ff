#include "zero3/config/keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "base/split.h"

namespace artesian::zero3 {
namespace {

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::string integer_text(double value) {
  return value < 1e15 ? std::to_string(static_cast<std::int64_t>(value)) : number_text(value);
}

/// Formats " of at least 0", " from 0 to 3", " above 0".
std::string range_text(const ConfigKey& key, bool integral) {
  const auto number = [&](double value) {
    return integral ? integer_text(value) : number_text(value);
  };
  if (key.high < any_finite) {
    return std::string(key.low_excluded ? " above " : " from ") + number(key.low) +
           (key.low_excluded ? " up to " : " to ") + number(key.high);
  }
  return (key.low_excluded ? " above " : " of at least ") + number(key.low);
}

/// True if a path's section has an earlier row.
bool section_is_known(std::string_view path, const std::vector<ConfigKey>& before) {
  const std::size_t dot = path.rfind('.');
  if (dot == path.npos) return true;
  return std::any_of(before.begin(), before.end(), [&](const ConfigKey& key) {
    const bool section = key.type == KeyType::Section || key.type == KeyType::OpenSection;
    return section && key.path == path.substr(0, dot);
  });
}

/// Checks the reader's assumptions about a row, given the rows before it.
void check_row(const ConfigKey& key, const std::vector<ConfigKey>& before) {
  ARTESIAN_CHECK(!key.path.empty() && section_is_known(key.path, before), before.size());
  ARTESIAN_CHECK(key.low <= key.high && key.multiple != 0, key.low, key.high);
  const bool chosen = key.type == KeyType::Choice && key.effect == KeyEffect::InEffect;
  ARTESIAN_CHECK(!chosen || !key.choices.empty(), before.size());
  const bool explained = key.effect != KeyEffect::InEffect && key.effect != KeyEffect::NotSupported;
  ARTESIAN_CHECK(!explained || !key.detail.empty(), before.size());
}

/// Checks that aliases refer to rows that are not aliases themselves.
void check_aliases(const std::vector<ConfigKey>& keys) {
  for (const ConfigKey& key : keys) {
    if (key.effect != KeyEffect::Alias) continue;
    const auto target = std::find_if(
        keys.begin(), keys.end(), [&](const ConfigKey& each) { return each.path == key.detail; });
    ARTESIAN_CHECK(target != keys.end() && target->effect != KeyEffect::Alias);
    ARTESIAN_CHECK(target->type == key.type, static_cast<int>(key.type));
  }
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    for (const auto part : {detail::training_keys(), detail::zero_keys(), detail::other_keys()}) {
      for (const ConfigKey& key : part) {
        check_row(key, all);
        all.push_back(key);
      }
    }
    check_aliases(all);
    return all;
  }();
  return keys;
}

bool removed_from_deepspeed(const ConfigKey& key, std::string_view value) noexcept {
  constexpr std::string_view keys[] = {"amp",
                                       "compression_training",
                                       "curriculum_learning",
                                       "eigenvalue",
                                       "elasticity",
                                       "graph_harvesting",
                                       "nebula",
                                       "progressive_layer_drop",
                                       "quantize_training",
                                       "sparse_attention",
                                       "sparse_gradients",
                                       "zero_optimization.mics_hierarchical_params_gather",
                                       "zero_optimization.mics_shard_size",
                                       "zero_optimization.zeropp_loco_param"};
  constexpr std::string_view optimizers[] = {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"};
  const auto is_key = [&](std::string_view each) {
    return key.path == each || (key.path.starts_with(each) && key.path[each.size()] == '.');
  };
  const auto is_value = [&](std::string_view each) { return value == each; };
  return std::any_of(std::begin(keys), std::end(keys), is_key) ||
         (key.path == "optimizer.type" &&
          std::any_of(std::begin(optimizers), std::end(optimizers), is_value));
}

const ConfigKey* find_config_key(std::string_view path) {
  static const auto index = [] {
    std::unordered_map<std::string_view, const ConfigKey*> by_path;
    for (const ConfigKey& key : config_keys()) {
      const bool fresh = by_path.emplace(key.path, &key).second;
      ARTESIAN_CHECK(fresh);
    }
    return by_path;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

std::vector<std::string_view> split_choices(std::string_view choices) {
  return choices.empty() ? std::vector<std::string_view>() : split(choices, '|');
}

std::string choices_text(std::string_view choices) {
  const auto parts = split_choices(choices);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " or " : ", ";
    text += parts[i];
  }
  return text;
}

std::string allowed_text(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::Boolean: return "true or false";
    case KeyType::Integer:
      return key.multiple > 1
                 ? fmt::format("a multiple of {}{}", key.multiple, range_text(key, true))
                 : "an integer" + range_text(key, true);
    case KeyType::Real: return "a number" + range_text(key, false);
    case KeyType::Choice:
      return choices_text(key.effect == KeyEffect::NotSupported ? key.detail : key.choices);
    case KeyType::Text: return "a string";
    case KeyType::Betas: return "two numbers from 0 to below 1";
    case KeyType::TextList: return "a list of strings";
    case KeyType::Folders: return "a folder or a list of folders";
    case KeyType::Size: return "a size in bytes such as 4096, \"512MiB\" or \"2GB\"";
    case KeyType::PrintSteps: return "an integer of at least 1, or Infinity";
    case KeyType::Section:
      if (key.path == "zero_optimization") return "an object {...} or true";
      [[fallthrough]];
    case KeyType::OpenSection: return "an object {...}";
    case KeyType::Any: return "nothing";
  }
  return "";
}

}  // namespace artesian::zero3
