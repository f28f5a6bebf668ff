#include "models/config_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace artesian::models {
namespace {

constexpr std::size_t faults_shown_max = 5;
constexpr std::size_t value_shown_max = 60;  // characters

std::string number_text(double value) {
  return nlohmann::json(value).dump();
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string path, std::string prefix)
    : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {
  ARTESIAN_CHECK(object_.is_object());
}

const nlohmann::json* ConfigReader::find(const char* name) {
  known_.emplace(name);
  const auto entry = object_.find(name);
  return entry == object_.end() ? nullptr : &*entry;
}

std::string ConfigReader::shown(const nlohmann::json& value) const {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > value_shown_max) text = text.substr(0, value_shown_max) + "...";
  return text;
}

void ConfigReader::add_fault(std::string_view key, std::string_view got, std::string_view allowed) {
  faults_.push_back("model config: " + path_ + ": " + prefix_ + std::string(key) + ": got " +
                    std::string(got) + ", allowed " + std::string(allowed));
}

void ConfigReader::add_note(std::string text) {
  notes_.push_back(path_ + ": " + prefix_ + std::move(text));
}

std::int64_t ConfigReader::integer(std::initializer_list<const char*> names, IntegerRange range,
                                   std::int64_t absent) {
  const nlohmann::json* value = nullptr;
  const char* chosen = nullptr;
  for (const char* name : names) {
    const nlohmann::json* candidate = find(name);
    if (candidate == nullptr) continue;
    if (value == nullptr) {
      value = candidate;
      chosen = name;
    } else if (*candidate != *value) {
      add_fault(name, shown(*candidate),
                "the same as " + std::string(chosen) + ", which is " + shown(*value));
    }
  }
  if (value == nullptr) return absent;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <= static_cast<std::uint64_t>(range.maximum)) &&
                    value->get<std::int64_t>() >= range.minimum &&
                    value->get<std::int64_t>() <= range.maximum;
  if (fits) return value->get<std::int64_t>();
  add_fault(chosen, shown(*value),
            fmt::format("an integer from {} to {}", range.minimum, range.maximum));
  return absent;
}

std::int64_t ConfigReader::integer_or_null(const char* name, IntegerRange range,
                                           std::int64_t absent) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || value->is_null()) return absent;
  return integer({name}, range, absent);
}

double ConfigReader::number(const char* name, NumberRange range, double absent) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return absent;
  if (value->is_number()) {
    const auto given = value->get<double>();
    if (given >= range.minimum && given <= range.maximum) return given;
  }
  add_fault(name, shown(*value),
            "a number from " + number_text(range.minimum) + " to " + number_text(range.maximum));
  return absent;
}

std::optional<double> ConfigReader::number_or_null(const char* name, NumberRange range) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return number(name, range, range.minimum);
}

std::vector<double> ConfigReader::numbers(const char* name, std::size_t count, NumberRange range) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  std::vector<double> given;
  if (value->is_array() && value->size() == count) {
    for (const auto& element : *value) {
      const double number = element.is_number() ? element.get<double>() : range.minimum - 1.0;
      if (number >= range.minimum && number <= range.maximum) given.push_back(number);
    }
  }
  if (given.size() == count) return given;
  add_fault(name, shown(*value),
            fmt::format("a list of {} numbers from {} to {}", count, number_text(range.minimum),
                        number_text(range.maximum)));
  return {};
}

std::optional<std::string> ConfigReader::text(const char* name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  add_fault(name, shown(*value), "a string");
  return std::nullopt;
}

std::optional<std::vector<std::string>> ConfigReader::texts(const char* name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  const auto is_text = [](const nlohmann::json& element) { return element.is_string(); };
  if (value->is_array() && std::all_of(value->begin(), value->end(), is_text)) {
    return value->get<std::vector<std::string>>();
  }
  add_fault(name, shown(*value), "a list of strings");
  return std::nullopt;
}

bool ConfigReader::has(const char* name) const {
  return object_.contains(name);
}

std::optional<ConfigReader> ConfigReader::section(const char* name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (!value->is_object()) {
    add_fault(name, shown(*value), "null or an object");
    return std::nullopt;
  }
  if (value->empty()) return std::nullopt;
  return ConfigReader(*value, path_, prefix_ + name + ".");
}

void ConfigReader::absorb(ConfigReader section) {
  for (std::string& note : section.take_notes()) notes_.push_back(std::move(note));
  for (std::string& fault : section.faults_) faults_.push_back(std::move(fault));
}

bool ConfigReader::boolean(const char* name, bool absent) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  add_fault(name, shown(*value), "true or false");
  return absent;
}

std::size_t ConfigReader::choice(const char* name, const std::vector<const char*>& allowed,
                                 std::size_t absent, std::initializer_list<const char*> later) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return absent;
  std::string list;
  for (std::size_t index = 0; index < allowed.size(); ++index) {
    if (*value == allowed[index]) return index;
    list += (index == 0 ? "" : ", ") + std::string(allowed[index]);
  }
  const bool known = std::find(later.begin(), later.end(), *value) != later.end();
  if (known) list += "; not supported yet: " + prefix_ + name + " " + value->get<std::string>();
  add_fault(name, shown(*value), list);
  return absent;
}

bool ConfigReader::refuse_unless(const char* name, std::initializer_list<const char*> neutral) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || value->is_null()) return true;
  std::string list = "null";
  for (const char* text : neutral) {
    if (*value == nlohmann::json::parse(text)) return true;
    list += " or " + std::string(text);
  }
  add_fault(name, shown(*value), list + "; not supported yet: " + prefix_ + name);
  return false;
}

void ConfigReader::ignore(std::initializer_list<std::string_view> names) {
  known_.insert(names.begin(), names.end());
}

void ConfigReader::ignore_beside(const char* name, const char* other, std::int64_t value_of_other) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || *value == value_of_other) return;
  add_note(
      fmt::format("{}: {} has no effect: {} is {}", name, shown(*value), other, value_of_other));
}

std::vector<std::string> ConfigReader::take_notes() {
  std::string unknown;
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key) || key.starts_with('_')) continue;
    unknown += (unknown.empty() ? "" : ", ") + prefix_ + key;
  }
  if (!unknown.empty()) {
    notes_.push_back(path_ + ": keys that are not known here and have no effect: " + unknown);
  }
  return std::move(notes_);
}

Result<void> ConfigReader::finish() const {
  if (faults_.empty()) return {};
  std::string lines;
  for (std::size_t index = 0; index < std::min(faults_.size(), faults_shown_max); ++index) {
    lines += (index == 0 ? "" : "\n") + faults_[index];
  }
  return make_error(ErrorCode::Invalid, std::move(lines));
}

}  // namespace artesian::models
