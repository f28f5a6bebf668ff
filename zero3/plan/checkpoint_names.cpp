#include "zero3/plan/checkpoint_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/safetensors_header.h"
#include "base/utf8.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t tag_size_max = 200;
constexpr std::size_t id_size = 16;
constexpr std::string_view damaged_suffix = ".damaged";
constexpr std::string_view client_prefix = "client-";
constexpr std::string_view model_prefix = "model/";
constexpr std::string_view data_suffix = ".safetensors";

struct Prefix {
  std::string_view text;
  DotName::Kind kind;
  bool has_tag;
};
constexpr std::array<Prefix, 5> prefixes{{{".tmp-", DotName::Kind::Temporary, true},
                                          {".old-", DotName::Kind::Replaced, true},
                                          {".gone-", DotName::Kind::Pruned, true},
                                          {".spare-", DotName::Kind::Spare, false},
                                          {".latest-", DotName::Kind::Latest, false}}};

bool is_tag_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

}  // namespace

bool is_checkpoint_tag(std::string_view tag) noexcept {
  return !tag.empty() && tag.size() <= tag_size_max && tag.front() != '.' &&
         std::all_of(tag.begin(), tag.end(), is_tag_character);
}

Result<void> check_checkpoint_tag(std::string_view tag) {
  if (is_checkpoint_tag(tag)) return {};
  return make_error(ErrorCode::Invalid,
                    "checkpoint tag: got " + shown_name(tag) +
                        ", allowed 1 to 200 of letters, digits, '_', '-' and, but not first, '.'");
}

std::string damaged_name(std::string_view tag, std::uint64_t number) {
  return fmt::format("{}{}{}", tag, damaged_suffix, number == 1 ? "" : std::to_string(number));
}

bool is_damaged_name(std::string_view name) noexcept {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name.ends_with(damaged_suffix);
}

bool is_client_name(std::string_view name) noexcept {
  return is_checkpoint_tag(name);
}

std::string client_file_name(std::string_view name) {
  return std::string(client_prefix) += name;
}

bool is_side_file(std::string_view name) noexcept {
  if (name.starts_with(client_prefix)) return is_client_name(name.substr(client_prefix.size()));
  return name.starts_with(model_prefix) && is_checkpoint_tag(name.substr(model_prefix.size()));
}

std::string rank_file_name(std::uint32_t rank) {
  std::string name = fmt::format("rank{}{}", rank, data_suffix);
  ARTESIAN_CHECK(is_data_file(name), rank);
  return name;
}

bool is_data_file(std::string_view name) noexcept {
  if (name == frozen_file_name) return true;
  if (!name.starts_with("rank") || !name.ends_with(data_suffix)) return false;
  const std::string_view digits = name.substr(4, name.size() - 4 - data_suffix.size());
  return !digits.empty() && digits.size() <= 9 && (digits == "0" || digits.front() != '0') &&
         std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string sums_file_name(std::string_view data_file) {
  ARTESIAN_CHECK(is_data_file(data_file), data_file.size());
  return std::string(data_file.substr(0, data_file.find('.'))) + ".sums";
}

std::string DotName::name() const {
  for (const Prefix& prefix : prefixes) {
    if (prefix.kind != kind) continue;
    ARTESIAN_CHECK(prefix.has_tag ? is_checkpoint_tag(tag) : tag.empty(), static_cast<int>(kind));
    return std::string(prefix.text) + (prefix.has_tag ? tag + "-" : "") + hex_of(id);
  }
  return {};
}

std::optional<DotName> parse_dot_name(std::string_view name) {
  for (const Prefix& prefix : prefixes) {
    if (!name.starts_with(prefix.text)) continue;
    std::string_view rest = name.substr(prefix.text.size());
    if (rest.size() < id_size) return std::nullopt;
    const auto id = parse_hex(rest.substr(rest.size() - id_size));
    rest.remove_suffix(id_size);
    if (!id) return std::nullopt;
    if (!prefix.has_tag) {
      return rest.empty() ? std::optional(DotName{prefix.kind, {}, *id}) : std::nullopt;
    }
    if (!rest.ends_with('-') || !is_checkpoint_tag(rest.substr(0, rest.size() - 1))) {
      return std::nullopt;
    }
    return DotName{prefix.kind, std::string(rest.substr(0, rest.size() - 1)), *id};
  }
  return std::nullopt;
}

std::string hex_of(std::uint64_t number) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(id_size, '0');
  for (std::size_t index = id_size; index-- > 0; number >>= 4) text[index] = digits[number & 15u];
  return text;
}

std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept {
  if (text.size() != id_size) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    number = number << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return number;
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    if (length == 0 || length > text.size()) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace artesian::zero3
