// What the kernel knows about the disk below a folder.
#pragma once

#include <string>

namespace artesian::tiering {

struct DiskFacts {
  std::string file_system;  // "ext4"; empty where the kernel does not tell
  std::string device;       // "259:2", or the name of the disk where the kernel tells it
  std::string warning;      // why figures of this file system mislead, or empty
};

DiskFacts disk_facts(const std::string& directory);

/// By the kernel's name of the disk.
std::string device_warning(const std::string& name);

/// By the kernel's name of the file system.
std::string file_system_warning(const std::string& type);

}  // namespace artesian::tiering
