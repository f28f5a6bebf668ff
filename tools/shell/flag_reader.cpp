#include "tools/shell/flag_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/units.h"

namespace artesian::tools {
namespace {

// Far above any run, and low enough that products of two fit in 64 bits.
constexpr std::uint64_t count_max = 1'000'000'000;

/// The whole text as a number of type T, or nothing.
template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void FlagReader::refuse(const std::string& flag, const std::string& got, const std::string& rest) {
  faults_.invalid(flag + ": got " + got + ", allowed " + rest);
}

void FlagReader::refuse_text(const char* flag, const std::string& rest) {
  refuse(flag, '"' + text(flag) + '"', rest);
}

std::string FlagReader::text(const char* flag) const {
  return given(flag) ? app_.get_option(flag)->results().front() : std::string();
}

void FlagReader::expect_single_values(const std::set<std::string>& several) {
  for (const CLI::Option* option : app_.get_options()) {
    if (option->get_items_expected_max() == 0 || option->count() < 2) continue;
    if (several.contains(option->get_name())) continue;
    refuse(option->get_name(), fmt::format("{} values", option->count()), "one; drop the others");
  }
}

std::string FlagReader::path(const char* flag) {
  std::string value = text(flag);
  if (given(flag) && value.empty()) refuse_text(flag, "a path; write one, or drop the flag");
  return value;
}

std::string FlagReader::folder(const char* flag) {
  std::string value = path(flag);
  while (value.size() > 1 && value.back() == '/') value.pop_back();
  return value;
}

std::vector<std::string> FlagReader::paths(const char* flag) {
  if (!given(flag)) return {};
  std::vector<std::string> values = app_.get_option(flag)->results();
  const bool empty = std::find(values.begin(), values.end(), "") != values.end();
  if (empty) refuse(flag, "\"\"", "a path; write one, or drop the flag");
  return values;
}

std::string FlagReader::required_path(const char* flag, const std::string& fix) {
  if (!given(flag)) refuse(flag, "nothing", "a path; " + fix);
  return path(flag);
}

std::optional<std::uint64_t> FlagReader::count(const char* flag) {
  if (!given(flag)) return std::nullopt;
  const auto value = parse_number<std::uint64_t>(text(flag));
  if (value.has_value() && *value >= 1 && *value <= count_max) return value;
  const bool large = value.has_value() && *value > count_max;
  refuse_text(flag, large ? fmt::format("a whole number of at most {}; lower it", count_max)
                          : std::string("a whole number of at least 1; write one such as 10"));
  return std::nullopt;
}

std::uint64_t FlagReader::seed(const char* flag) {
  if (!given(flag)) return 0;
  const auto value = parse_number<std::uint64_t>(text(flag));
  if (!value.has_value()) {
    refuse_text(flag, "a whole number from 0 to 18446744073709551615; write one such as 1");
  }
  return value.value_or(0);
}

std::optional<double> FlagReader::rate(const char* flag) {
  if (!given(flag)) return std::nullopt;
  const auto value = parse_number<double>(text(flag));
  if (value.has_value() && std::isfinite(*value) && *value >= 0) return value;
  refuse_text(flag, "a number of at least 0; write one such as 1e-4");
  return std::nullopt;
}

bool FlagReader::second_word(const char* flag, const std::string& first,
                             const std::string& second) {
  const std::string value = text(flag);
  if (given(flag) && value != first && value != second) {
    refuse_text(flag, first + " or " + second + "; write one of them");
  }
  return value == second;
}

std::optional<double> FlagReader::number(const char* flag, double low, double high,
                                         const char* example) {
  if (!given(flag)) return std::nullopt;
  const auto value = parse_number<double>(text(flag));
  if (value.has_value() && *value > low && *value <= high) return value;
  char range[96];
  std::snprintf(range, sizeof range, "a number above %g, at most %g; write one such as %s", low,
                high, example);
  refuse_text(flag, range);
  return std::nullopt;
}

std::optional<std::uint64_t> FlagReader::size(const char* flag) {
  if (!given(flag)) return std::nullopt;
  const auto value = parse_size(text(flag));
  if (value.has_value() && *value >= 1 && *value <= (std::uint64_t{1} << 50)) return *value;
  refuse_text(flag, "a size from 1 to 1024T; write one such as 512MiB or 80GB");
  return std::nullopt;
}

}  // namespace artesian::tools
