// Small files of /proc and /sys. What cannot be read is empty: on another kernel, or in a
// container, much is not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace artesian {

/// The first line, without spaces at its ends.
std::string first_line_of(const std::string& path);
/// Its number, if it starts with one.
std::optional<std::int64_t> number_of(const std::string& path);
/// Returns the rest of the first line that starts with `key`, without leading spaces and ':'.
std::string value_after(const std::string& path, const std::string& key);
/// Names in the folder, sorted.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace artesian
