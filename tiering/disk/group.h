// Finds which folders share a disk, and so its speed: folders on one file system, and on different
// file systems of one disk, through partitions, volumes, RAID and loop devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tiering {

/// Names of the disks below an existing or future folder at this path; the file system's name if no
/// disk is visible; empty if the folder cannot exist. `root`: as in block_device.h.
std::vector<std::string> disk_names_of(const std::string& path, const std::string& root = "");

/// Returns a number for each list of names; lists with a common name, even through a third list,
/// get the same number. An empty list shares nothing.
std::vector<std::uint64_t> groups_by_disk(const std::vector<std::vector<std::string>>& disks);

}  // namespace artesian::tiering
