// Which file system holds a path, and of what kind it is. Rates and advice differ for file systems
// that are not local disks and for those that write changed blocks to a new place. `root` is
// prepended to /proc, so that tests can simulate other machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tiering {

struct Mount {
  std::string point;
  std::string type = {};    // "ext4"
  std::string source = {};  // "/dev/nvme0n1p2", "server:/export"
  std::uint32_t major = 0;  // of the block device; 0 if the file system has none
  std::uint32_t minor = 0;
  // "rw", "data=journal": options of the mount, then of the file system
  std::vector<std::string> options = {};
};
/// The mount that holds the path, which must be absolute and without symbolic links.
Mount mount_of(const std::string& path, const std::string& root = "");

enum class FileSystemKind : std::uint8_t {
  Local,        // local disks, and unknown file systems
  CopyOnWrite,  // local, but each rewrite allocates new blocks
  Network,
  Program,  // FUSE: local or not, a user-space program serves it
  Container,
  Memory
};
/// The kind for the kernel's name of the type, as in mountinfo.
FileSystemKind file_system_kind(const std::string& type) noexcept;

/// Describes in a few words what such a file system means for state that is offloaded to it.
const char* file_system_meaning(FileSystemKind kind) noexcept;
/// Tells what to do about it; empty: nothing.
std::string file_system_fix(FileSystemKind kind);

}  // namespace artesian::tiering
