// Which folders share a disk, and so its speed: those on one file system, and those on several of
// one disk, through partitions, volumes, RAID and loop devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tiering {

/// Names of the disks below a folder that is, or will be, at this path; of the file system, where
/// no disk can be seen; none where there is no such folder. `root`: as in block_device.h.
std::vector<std::string> disk_names_of(const std::string& path, const std::string& root = "");

/// A number for each of the lists of names, the same for those that have a name in common, be it
/// through a third. An empty one shares nothing.
std::vector<std::uint64_t> groups_by_disk(const std::vector<std::vector<std::string>>& disks);

}  // namespace artesian::tiering
