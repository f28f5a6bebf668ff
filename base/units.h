// Sizes as people read and write them. Bandwidths use GB = 10^9 bytes everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace artesian {

/// Bytes of "4096", "8K", "8KiB", "1.5 GB": a bare number is bytes; K, M, G, T and KiB.. are powers
/// of 1024; KB, MB, GB, TB of 1000; case does not matter. Errors: Invalid, with what is allowed.
Result<std::uint64_t> parse_size(std::string_view text);

/// "512 MiB", "1.5 GiB", "17 B": three significant digits, powers of 1024.
std::string format_size(std::uint64_t bytes);

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) noexcept {
  return value / multiple * multiple;
}

}  // namespace artesian
