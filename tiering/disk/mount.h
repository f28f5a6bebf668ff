// Which file system holds a path, and what kind of one it is: of those that are no local disk, and
// of those that write elsewhere what is rewritten, figures and advice differ. `root` is put before
// /proc, so that tests can show other machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tiering {

struct Mount {
  std::string point;
  std::string type = {};    // "ext4"
  std::string source = {};  // "/dev/nvme0n1p2", "server:/export"
  std::uint32_t major = 0;  // of the block device; 0 if the file system has none of its own
  std::uint32_t minor = 0;
  std::vector<std::string> options =
      {};  // "rw", "data=journal": the mount's, then the file system's
};
/// The mount that holds the path, which must be absolute and without links.
Mount mount_of(const std::string& path, const std::string& root = "");

enum class FileSystemKind : std::uint8_t {
  Local,        // local disks, and unknown file systems
  CopyOnWrite,  // local, but each rewrite allocates anew
  Network,
  Program,  // FUSE: local or not, a program stands before it
  Container,
  Memory
};
/// By the kernel's name of the type, as mountinfo has it.
FileSystemKind file_system_kind(const std::string& type) noexcept;

/// Says in a few words what such a file system means for state that is offloaded to it.
const char* file_system_meaning(FileSystemKind kind) noexcept;
/// Says what to do about it; empty: nothing.
std::string file_system_fix(FileSystemKind kind);

}  // namespace artesian::tiering
