// This process's control groups, version 1 and 2, as files in /sys show them. `root` is prepended
// to every path, so that tests can simulate other machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian {

enum class GroupVersion : std::uint8_t { One, Two };

/// Returns the folders of this process's group and of all visible groups above it, its own first.
/// `controller`: "memory"; version 2 has one hierarchy for all controllers. Empty: there is no
/// group.
std::vector<std::string> control_group_folders(GroupVersion version, const std::string& controller,
                                               const std::string& root = "");

}  // namespace artesian
