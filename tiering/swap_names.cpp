#include "tiering/swap_names.h"

#include <fmt/core.h>

#include <charconv>

#include "base/check.h"

namespace artesian::tiering {
namespace {

constexpr std::string_view prefix = "artesian-";
constexpr std::size_t hex_digits = 16;

// The whole text as a number of type T, or nothing.
template <typename T>
std::optional<T> parse_number(std::string_view text, int base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string_view> between(std::string_view text, std::string_view head,
                                        std::string_view tail) {
  if (text.size() < head.size() + tail.size()) return std::nullopt;
  if (!text.starts_with(head) || !text.ends_with(tail)) return std::nullopt;
  return text.substr(head.size(), text.size() - head.size() - tail.size());
}

}  // namespace

std::string swap_file_name(std::uint64_t run_id, std::uint32_t rank) {
  std::string digits(hex_digits, '0');
  for (std::size_t i = hex_digits; i-- > 0; run_id >>= 4)
    digits[i] = "0123456789abcdef"[run_id & 15];
  ARTESIAN_CHECK(run_id == 0 && digits.size() == hex_digits, digits);  // all digits must be written
  return fmt::format("{}{}-rank{}.swap", prefix, digits, rank);
}

std::string lock_file_name(std::uint32_t rank) {
  return fmt::format("{}rank{}.lock", prefix, rank);
}

std::optional<SwapName> parse_swap_file_name(std::string_view name) {
  const auto middle = between(name, prefix, ".swap");
  if (!middle || middle->size() <= hex_digits) return std::nullopt;
  const auto run_id = parse_number<std::uint64_t>(middle->substr(0, hex_digits), 16);
  const auto digits = between(middle->substr(hex_digits), "-rank", "");
  if (!run_id || !digits) return std::nullopt;
  const auto rank = parse_number<std::uint32_t>(*digits, 10);
  if (!rank || swap_file_name(*run_id, *rank) != name) return std::nullopt;  // a different spelling
  return SwapName{.run_id = *run_id, .rank = *rank};
}

std::optional<std::uint32_t> parse_lock_file_name(std::string_view name) {
  const auto digits = between(name, std::string(prefix) + "rank", ".lock");
  if (!digits) return std::nullopt;
  const auto rank = parse_number<std::uint32_t>(*digits, 10);
  if (!rank || lock_file_name(*rank) != name) return std::nullopt;
  return rank;
}

}  // namespace artesian::tiering
