#include "zero3/config/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/nearest.h"
#include "base/split.h"
#include "base/units.h"

namespace artesian::zero3 {
namespace {

using Kind = JsonValue::Kind;
using MaybeFault = std::optional<std::string>;

constexpr double real_max = 1e38;

bool same(std::string_view a, std::string_view b, bool case_matters) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) {
           const auto low = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
           return case_matters ? x == y : low(x) == low(y);
         });
}

std::string got(const ConfigKey& key, const JsonValue& value, const std::string& fix = "") {
  return "got " + print_json(value) + ", allowed " + allowed_text(key) +
         (fix.empty() ? "" : "; " + fix);
}

bool looks_like_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

MaybeFault boolean_fault(const ConfigKey& key, JsonValue& value) {
  if (value.kind == Kind::Boolean) return {};
  if (value.kind == Kind::String && (value.text == "true" || value.text == "false")) {
    if (!key.path.starts_with("aio.")) return got(key, value, "remove the quotes");
    value = {.kind = Kind::Boolean, .boolean = value.text == "true"};  // as printed by ds_nvme_tune
    return {};
  }
  return got(key, value);
}

MaybeFault number_fault(const ConfigKey& key, const JsonValue& value) {
  if (value.kind == Kind::String && looks_like_number(value.text)) {
    return got(key, value, "remove the quotes");
  }
  const bool has_unit = value.kind == Kind::String && !value.text.empty() &&
                        std::isdigit(static_cast<unsigned char>(value.text[0])) != 0;
  if (has_unit) return got(key, value, "write it out, such as 1048576 for 1Mi");
  if (value.kind != Kind::Number) return got(key, value);
  const double number = value.number;
  if (key.type == KeyType::PrintSteps && value.text == "Infinity") return {};
  if (!std::isfinite(number) || number < key.low || number > key.high) return got(key, value);
  if (key.low_excluded && number == key.low) return got(key, value);
  if (key.type == KeyType::Real) {
    // Arithmetic uses fp32, except for a loss scale, whose minimum may be any finite number.
    const bool too_large = std::abs(number) > real_max && key.high != any_finite;
    return too_large ? got(key, value, "at most 1e38, which fp32 can hold") : MaybeFault{};
  }
  if (std::floor(number) != number) {
    return got(key, value, fmt::format("an integer such as {}", std::llround(number)));
  }
  if (number < 0) return {};
  if (!value.exact || value.integer > 9223372036854775807u) {
    return got(key, value, "at most 9223372036854775807");
  }
  if (value.integer % key.multiple != 0) return got(key, value);
  return {};
}

MaybeFault choice_fault(const ConfigKey& key, JsonValue& value) {
  const auto choices = split_choices(key.choices);
  if (value.kind == Kind::String) {
    for (const std::string_view choice : choices) {
      if (!same(choice, value.text, key.case_matters)) continue;
      value.text = choice;
      return {};
    }
    const bool some = key.effect == KeyEffect::NotSupported;  // suggest values that work
    const auto near = some ? split_choices(key.detail) : choices;
    const std::string nearest = nearest_name(value.text, near);
    if (!nearest.empty()) return got(key, value, "did you mean \"" + nearest + "\"?");
  }
  return got(key, value);
}

MaybeFault list_fault(const ConfigKey& key, const JsonValue& value) {
  if (value.kind != Kind::Array) return got(key, value);
  if (key.type == KeyType::Betas && value.elements.size() != 2) return got(key, value);
  for (const JsonValue& element : value.elements) {
    if (key.type == KeyType::TextList && element.kind != Kind::String) return got(key, value);
    if (key.type != KeyType::Betas) continue;
    if (element.kind != Kind::Number) return got(key, value);
    if (!(element.number >= 0.0 && element.number < 1.0)) return got(key, value);
    if (static_cast<float>(element.number) == 1.0f) {  // otherwise 1 - beta^t would divide by 0
      return got(key, value,
                 "as fp32, in which the update computes, one of them is 1; the largest "
                 "that is not is 0.99999994");
    }
  }
  return {};
}

/// Converts "a, b" to ["a", "b"]; in a list, a comma is part of a name.
MaybeFault folders_fault(const ConfigKey& key, JsonValue& value) {
  if (value.kind == Kind::String) {
    JsonValue list{.kind = Kind::Array};
    // An empty text means no folder, rather than one with an empty name.
    std::vector<std::string_view> folders;
    if (!value.text.empty()) folders = split(value.text, ',');
    for (std::string_view folder : folders) {
      if (folders.size() > 1) {  // a single name may begin and end with blanks
        folder.remove_prefix(std::min(folder.find_first_not_of(' '), folder.size()));
        folder = folder.substr(0, folder.find_last_not_of(' ') + 1);
      }
      list.elements.push_back({.kind = Kind::String, .text = std::string(folder)});
    }
    for (const JsonValue& folder : list.elements) {
      if (folder.text.empty()) return got(key, value, "name a folder on each side of a comma");
      if (folder.text.find('\0') != std::string::npos) return got(key, value, "remove the NUL");
    }
    value = std::move(list);
    return {};
  }
  if (value.kind != Kind::Array) return got(key, value);
  for (const JsonValue& folder : value.elements) {
    if (folder.kind != Kind::String) return got(key, value);
    if (folder.text.empty()) return got(key, value, "remove the empty one");
    if (folder.text.find('\0') != std::string::npos) return got(key, value, "remove the NUL");
  }
  return {};
}

MaybeFault size_fault(const ConfigKey& key, JsonValue& value) {
  std::uint64_t bytes = 0;
  if (value.kind == Kind::String) {
    const Result<std::uint64_t> size = parse_size(value.text);
    if (!size) return got(key, value);
    bytes = size.value();
  } else if (value.kind == Kind::Number && value.exact) {
    bytes = value.integer;
  } else {
    return got(key, value);
  }
  if (bytes == 0 || bytes > 9223372036854775807u) return got(key, value);
  value = {.kind = Kind::Number,
           .number = static_cast<double>(bytes),
           .exact = true,
           .integer = bytes,
           .text = value.text};
  return {};
}

}  // namespace

MaybeFault value_fault(const ConfigKey& key, JsonValue& value) {
  switch (key.type) {
    case KeyType::Boolean: return boolean_fault(key, value);
    case KeyType::Integer:
    case KeyType::Real:
    case KeyType::PrintSteps: return number_fault(key, value);
    case KeyType::Choice: return choice_fault(key, value);
    case KeyType::Betas:
    case KeyType::TextList: return list_fault(key, value);
    case KeyType::Folders: return folders_fault(key, value);
    case KeyType::Size: return size_fault(key, value);
    case KeyType::Text:
      if (value.kind != Kind::String) return got(key, value);
      if (value.text.find('\0') != std::string::npos) return got(key, value, "remove the NUL");
      return {};
    case KeyType::Section:
    case KeyType::OpenSection:
      if (value.kind != Kind::Object) return got(key, value);
      return {};
    case KeyType::Any: return {};
  }
  return {};
}

bool value_supported(const ConfigKey& key, const JsonValue& value) {
  for (const std::string_view accepted : split_choices(key.detail)) {
    if (value.kind == Kind::Boolean && accepted == (value.boolean ? "true" : "false")) return true;
    if (value.kind == Kind::String && accepted == value.text) return true;
    if (value.kind == Kind::Number &&
        value.number == std::strtod(std::string(accepted).c_str(), nullptr)) {
      return true;
    }
  }
  return false;
}

}  // namespace artesian::zero3
