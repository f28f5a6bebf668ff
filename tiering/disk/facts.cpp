#include "tiering/disk/facts.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "tiering/disk/mount.h"

namespace artesian::tiering {

std::string file_system_warning(const std::string& type) {
  const std::string fix = "; name a folder on a local NVMe disk with --path";
  switch (tiering::file_system_kind(type)) {
    case tiering::FileSystemKind::Network:
      return type + " is a network file system: what is measured is the net" + fix;
    case tiering::FileSystemKind::Container:
      return type +
             " is a container's layered file system, slower than the disk below it; mount a "
             "volume of the disk and name it with --path";
    case tiering::FileSystemKind::Memory: return type + " is memory, not a disk" + fix;
    case tiering::FileSystemKind::Program:
      return type + ": a program stands between us and the disk" + fix;
    case tiering::FileSystemKind::CopyOnWrite:
    case tiering::FileSystemKind::Local: break;
  }
  return "";
}

std::string device_warning(const std::string& name) {
  if (!name.starts_with("loop")) return "";
  return name +
         " is a loop device, a file of another file system: what is measured goes through that; "
         "name a folder on the disk itself with --path";
}

DiskFacts disk_facts(const std::string& directory) {
  DiskFacts facts;
  std::error_code failed;
  const auto path = std::filesystem::canonical(directory, failed);
  if (!failed) facts.file_system = tiering::mount_of(path).type;
  facts.warning = file_system_warning(facts.file_system);
  struct stat status {};
  if (::stat(directory.c_str(), &status) == 0) {
    facts.device = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
    const auto link = std::filesystem::read_symlink("/sys/dev/block/" + facts.device, failed);
    if (!failed) facts.device = link.filename();
    if (facts.warning.empty()) facts.warning = device_warning(facts.device);
  }
  return facts;
}

}  // namespace artesian::tiering
