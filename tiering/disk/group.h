// Which folders share a disk, and so its speed: those on one file system, and those on several of
// one disk, through partitions, volumes, RAID and loop devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tiering {

/// Names of the disks below an existing or future folder at this path; the file system's name if no
/// disk is visible; none without such a folder. `root`: as in block_device.h.
std::vector<std::string> disk_names_of(const std::string& path, const std::string& root = "");

/// A number for each of the lists of names, the same for those that have a name in common, be it
/// through a third. An empty one shares nothing.
std::vector<std::uint64_t> groups_by_disk(const std::vector<std::vector<std::string>>& disks);

}  // namespace artesian::tiering
