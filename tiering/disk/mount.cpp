#include "tiering/disk/mount.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "base/split.h"

namespace artesian::tiering {
namespace {

/// mountinfo writes blanks as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool is_inside(const std::string& path, const std::string& folder) {
  if (folder == "/" || path == folder) return true;
  return path.starts_with(folder) && path[folder.size()] == '/';
}

}  // namespace

Mount mount_of(const std::string& path, const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  Mount best;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string id, parent, device, inside, point, options, word;
    words >> id >> parent >> device >> inside >> point >> options;
    while (words >> word && word != "-") {
    }
    Mount mount{.point = unescaped(point)};
    words >> mount.type >> mount.source >> word;  // followed by the file system's own options
    options += "," + word;
    // A later mount covers an earlier one.
    const bool closer = mount.point.size() >= best.point.size();
    if (!words || !closer || !is_inside(path, mount.point)) continue;
    std::sscanf(device.c_str(), "%u:%u", &mount.major, &mount.minor);
    for (const std::string_view option : split(options, ',')) mount.options.emplace_back(option);
    best = mount;
  }
  struct stat source {};
  const bool named = best.major == 0 && best.source.starts_with("/dev/");  // as for btrfs
  if (named && stat(best.source.c_str(), &source) == 0 && S_ISBLK(source.st_mode)) {
    best.major = major(source.st_rdev);
    best.minor = minor(source.st_rdev);
  }
  return best;
}

FileSystemKind file_system_kind(const std::string& type) noexcept {
  const auto one_of = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  if (one_of({"tmpfs", "ramfs", "hugetlbfs"})) return FileSystemKind::Memory;
  if (one_of({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "beegfs",
              "afs", "9p", "gpfs"})) {
    return FileSystemKind::Network;
  }
  if (type.starts_with("fuse")) return FileSystemKind::Program;
  if (one_of({"overlay", "aufs"})) return FileSystemKind::Container;
  if (one_of({"btrfs", "zfs", "bcachefs"})) return FileSystemKind::CopyOnWrite;
  return FileSystemKind::Local;
}

const char* file_system_meaning(FileSystemKind kind) noexcept {
  switch (kind) {
    case FileSystemKind::Memory:
      return "this is memory, not a disk: what is offloaded there is not offloaded";
    case FileSystemKind::Network:
    case FileSystemKind::Program:
      return "a network or user-space file system: slower than a local disk by far";
    case FileSystemKind::Container: return "a container's own layer: slow, and often small";
    case FileSystemKind::CopyOnWrite: return "copy-on-write: each rewrite of state allocates anew";
    case FileSystemKind::Local: break;
  }
  return "a local file system";
}

std::string file_system_fix(FileSystemKind kind) {
  const std::string folder = "a folder on a local file system, such as ext4 or xfs on an NVMe disk";
  switch (kind) {
    case FileSystemKind::Container: return folder + ", mounted into the container as a volume";
    case FileSystemKind::CopyOnWrite:
      return "chattr +C on the empty folder (btrfs), or a folder on ext4 or xfs";
    case FileSystemKind::Local: return "";
    default: return folder;
  }
}

}  // namespace artesian::tiering
