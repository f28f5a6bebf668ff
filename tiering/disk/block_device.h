// The disks below a folder, as /sys shows them: through partitions, dm (LVM, LUKS) and md (RAID),
// and through loop devices to the disk that holds the loop file. `root` is prepended to the paths
// of /proc and /sys, so that tests can simulate other machines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace artesian::tiering {

/// A disk with no other block device below it.
struct BlockDevice {
  std::string name;        // "nvme0n1"
  std::string model = {};  // empty if unknown
  bool nvme = false;
  bool over_network = false;  // NVMe over Fabrics
  bool rotational = false;
  bool virtual_disk = false;  // a virtual machine's disk, a RAM disk, or a loop device
  std::string loop = {};      // the loop device above this disk; empty without one
  std::optional<std::uint32_t> numa_node = {};
};
std::vector<BlockDevice> disks_below(std::uint32_t major, std::uint32_t minor,
                                     const std::string& root = "");

/// The folder that a path leads to, which need not exist yet. Two paths that will lead to one
/// folder give the same result.
std::filesystem::path resolved_folder(const std::string& path);

/// The folder that a path leads to, or the folder in which it would be created.
struct NearestFolder {
  std::string folder = {};  // the path itself or its parent, if it exists; else empty
  bool missing = false;
};
NearestFolder nearest_folder(const std::string& path);

/// The disks below an existing or future folder at this path; empty if they are unknown.
std::vector<BlockDevice> disks_of(const std::string& path, const std::string& root = "");

}  // namespace artesian::tiering
