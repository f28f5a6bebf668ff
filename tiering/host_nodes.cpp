#include "tiering/host_nodes.h"

#include "tiering/disk/block_device.h"

namespace artesian::tiering {

pinned::NodePolicy nodes_of_host(std::optional<std::uint32_t> gpu,
                                 const std::vector<std::string>& folders, const std::string& root) {
  const pinned::MachineNodes machine = pinned::machine_nodes(root);
  if (machine.usable.size() < 2) return {};
  pinned::MemoryUsers users{.gpu = gpu};
  for (const std::string& folder : folders) {
    for (const BlockDevice& disk : disks_of(folder, root)) {
      if (disk.numa_node.has_value()) users.disks.push_back(*disk.numa_node);
    }
  }
  return pinned::choose_nodes(machine, users);
}

}  // namespace artesian::tiering
