// Small files in /proc and /sys. Values that cannot be read are empty, as other kernels and
// containers lack many of these files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace artesian {

/// The first line of the file, trimmed of spaces.
std::string first_line_of(const std::string& path);
/// The number that the first line starts with, if any.
std::optional<std::int64_t> number_of(const std::string& path);
/// Returns the rest of the first line that starts with `key`, without leading spaces and ':'.
std::string value_after(const std::string& path, const std::string& key);
/// Names in the folder, sorted.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace artesian
