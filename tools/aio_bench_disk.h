// What the kernel knows about the disk below a folder.
#pragma once

#include <cstdint>
#include <string>

namespace artesian::bench {

struct DiskFacts {
  std::string file_system;  // "ext4", or a hexadecimal number
  std::string device;       // "259:2", or the name of the disk where the kernel tells it
  std::string warning;      // why figures of this file system mislead, or empty
};

DiskFacts disk_facts(const std::string& directory);

/// By the magic number of statfs(2).
std::string file_system_name(std::uint64_t magic);
std::string file_system_warning(std::uint64_t magic);

}  // namespace artesian::bench
