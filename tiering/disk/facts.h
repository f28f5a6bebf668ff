// What the kernel knows about the disk below a folder.
#pragma once

#include <string>

namespace artesian::tiering {

struct DiskFacts {
  std::string file_system;  // "ext4"; empty if the kernel does not tell
  std::string device;       // "259:2", or the disk's name if the kernel tells it
  std::string warning;      // why measured rates on this file system mislead, or empty
};

DiskFacts disk_facts(const std::string& directory);

/// Returns the warning for the disk with this kernel name.
std::string device_warning(const std::string& name);

/// Returns the warning for the file system with this kernel name.
std::string file_system_warning(const std::string& type);

}  // namespace artesian::tiering
