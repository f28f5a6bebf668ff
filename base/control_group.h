// This process's control groups, of both versions, as files of /sys show them. `root` is put before
// every path, so that tests can show other machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian {

enum class GroupVersion : std::uint8_t { One, Two };

/// Folders of the group that this process is in, and of all above it that can be seen: its own
/// first. `controller`: "memory"; version 2 has one hierarchy for all. Empty: there is none.
std::vector<std::string> control_group_folders(GroupVersion version, const std::string& controller,
                                               const std::string& root = "");

}  // namespace artesian
