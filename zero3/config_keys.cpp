#include "zero3/config_keys.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <unordered_map>

#include "base/check.h"

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

/// " of at least 0", " from 0 to 3", " above 0".
std::string range_text(const ConfigKey& key, bool integral) {
  const auto number = [&](double value) {
    return integral ? integer_text(value) : number_text(value);
  };
  if (std::isfinite(key.high)) {
    return std::string(key.low_excluded ? " above " : " from ") + number(key.low) +
           (key.low_excluded ? " up to " : " to ") + number(key.high);
  }
  return (key.low_excluded ? " above " : " of at least ") + number(key.low);
}

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

/// Levenshtein's distance, case ignored.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0u : 1u);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    for (const auto part : {detail::training_keys(), detail::zero_keys(), detail::other_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return keys;
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
  std::vector<std::string_view> parts;
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    parts.push_back(choices.substr(0, end));
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return parts;
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
      return (key.multiple > 1 ? "a multiple of " + std::to_string(key.multiple) : "an integer") +
             range_text(key, true);
    case KeyType::Real: return "a number" + range_text(key, false);
    case KeyType::Choice:
      return choices_text(key.effect == KeyEffect::NotSupported ? key.detail : key.choices);
    case KeyType::Text: return "a string";
    case KeyType::Betas: return "two numbers from 0 to below 1";
    case KeyType::TextList: return "a list of strings";
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

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > 100) return "";
  std::size_t least = (name.size() <= 3 ? 1 : std::max<std::size_t>(2, name.size() / 3)) + 1;
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

}  // namespace artesian::zero3
