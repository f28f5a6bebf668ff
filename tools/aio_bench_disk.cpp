#include "tools/aio_bench_disk.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cstdio>
#include <filesystem>

namespace artesian::bench {
namespace {

enum class Kind : std::uint8_t { Local, Network, Overlay, Memory, User };

struct Known {
  std::uint64_t magic;
  const char* name;
  Kind kind;
};

// linux/magic.h, and the sources of those that are not in it.
constexpr Known known[] = {
    {0xEF53, "ext4", Kind::Local},         {0x58465342, "xfs", Kind::Local},
    {0x9123683E, "btrfs", Kind::Local},    {0xF2F52010, "f2fs", Kind::Local},
    {0x2FC12FC1, "zfs", Kind::Local},      {0xCA451A4E, "bcachefs", Kind::Local},
    {0x4D44, "vfat", Kind::Local},         {0x5346544E, "ntfs", Kind::Local},
    {0x7366746E, "ntfs3", Kind::Local},    {0x6969, "nfs", Kind::Network},
    {0xFF534D42, "cifs", Kind::Network},   {0xFE534D42, "smb2", Kind::Network},
    {0x517B, "smb", Kind::Network},        {0x00C36400, "ceph", Kind::Network},
    {0x0BD00BD0, "lustre", Kind::Network}, {0x47504653, "gpfs", Kind::Network},
    {0x19830326, "beegfs", Kind::Network}, {0x01021997, "9p", Kind::Network},
    {0x5346414F, "afs", Kind::Network},    {0x794C7630, "overlay", Kind::Overlay},
    {0x61756673, "aufs", Kind::Overlay},   {0x01021994, "tmpfs", Kind::Memory},
    {0x858458F6, "ramfs", Kind::Memory},   {0x65735546, "fuse", Kind::User}};

const Known* find(std::uint64_t magic) {
  for (const Known& each : known) {
    if (each.magic == magic) return &each;
  }
  return nullptr;
}

}  // namespace

std::string file_system_name(std::uint64_t magic) {
  if (const Known* found = find(magic); found != nullptr) return found->name;
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(magic));
  return text;
}

std::string file_system_warning(std::uint64_t magic) {
  const Known* found = find(magic);
  if (found == nullptr) return "";
  const std::string name = found->name;
  const std::string fix = "; name a folder on a local NVMe disk with --path";
  switch (found->kind) {
    case Kind::Local: return "";
    case Kind::Network:
      return name + " is a network file system: what is measured is the net" + fix;
    case Kind::Overlay:
      return name +
             " is a container's layered file system, slower than the disk below it; mount a "
             "volume of the disk and name it with --path";
    case Kind::Memory: return name + " is memory, not a disk" + fix;
    case Kind::User: return name + ": a program stands between us and the disk" + fix;
  }
  return "";
}

DiskFacts disk_facts(const std::string& directory) {
  DiskFacts facts;
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) == 0) {
    const auto magic = static_cast<std::uint32_t>(system.f_type);  // signed on some machines
    facts.file_system = file_system_name(magic);
    facts.warning = file_system_warning(magic);
  }
  struct stat status {};
  if (::stat(directory.c_str(), &status) == 0) {
    facts.device =
        std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
    std::error_code failed;
    const auto link = std::filesystem::read_symlink("/sys/dev/block/" + facts.device, failed);
    if (!failed) facts.device = link.filename();
  }
  return facts;
}

}  // namespace artesian::bench
