// The names that a run gives to its files in an nvme directory. Anything else there is foreign and
// never touched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace artesian::tiering {

struct SwapName {
  std::uint64_t run_id = 0;
  std::uint32_t rank = 0;
};

/// "artesian-0123456789abcdef-rank0.swap"
std::string swap_file_name(std::uint64_t run_id, std::uint32_t rank);
/// "artesian-rank0.lock"
std::string lock_file_name(std::uint32_t rank);
/// An empty file that marks a directory as created by a run: the last run that leaves removes it.
constexpr const char* made_marker_name = "artesian-made-directory";

/// Parses such a name; nothing unless it is spelled exactly as above.
std::optional<SwapName> parse_swap_file_name(std::string_view name);
std::optional<std::uint32_t> parse_lock_file_name(std::string_view name);

}  // namespace artesian::tiering
