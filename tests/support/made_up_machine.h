// Another machine's /proc and /sys below a folder, in the kernel's form.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace artesian::test_support {

class MadeUpMachine {
 public:
  const std::string& root() const { return folder_.path(); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root() + path).parent_path());
    std::ofstream(root() + path) << text << "\n";
  }

  /// A block device at a place of /sys/devices, with its number and links, as the kernel has them.
  std::string add(const std::string& place, const std::string& number) {
    const std::string device = "/sys/devices/" + place;
    write(device + "/dev", number);
    link("/sys/dev/block/" + number, device);
    link("/sys/class/block/" + std::filesystem::path(place).filename().string(), device);
    return device;
  }

  /// An NVMe disk, on a NUMA node of which -1 means that it is not known.
  std::string add_nvme(const std::string& number, int node) {
    const std::string pci = "/sys/devices/pci0000:00/0000:01:00.0/";
    const std::string controller = pci + "nvme/nvme0";
    const std::string disk = add("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", number);
    write(pci + "numa_node", std::to_string(node));
    write(disk + "/queue/rotational", "0");
    write(controller + "/model", "Fast Disk 2T");
    write(controller + "/transport", "pcie");
    link(disk + "/device", controller);
    return disk;
  }

  void below(const std::string& device, const std::string& disk) {
    link(device + "/slaves/" + std::filesystem::path(disk).filename().string(), disk);
  }

 private:
  void link(const std::string& name, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(root() + name).parent_path());
    std::filesystem::create_symlink(root() + target, root() + name);
  }

  TemporaryDirectory folder_;
};

}  // namespace artesian::test_support
