// NUMA: on which of the machine's nodes memory is placed. Three steps, of which the middle one is
// pure:
//
//   machine_nodes         what there is, from /proc and /sys
//   choose_nodes          what suits those who use the memory
//   MemoryRange::place    the kernel's mbind, before first touch
//
// Note [Near memory]: a device's transfers are fastest to memory of the node that it hangs on. So
// memory is placed near the GPU that copies it, else near the disks, else near the cores; several
// nodes are interleaved page by page (2 MiB each). All of this is a preference: if a node is full,
// the kernel uses the next one, and nothing fails. A policy set for the process (numactl) is kept,
// and on a machine with one node no call is made.
//
// This reads the kernel's own files. hwloc reads the same files, needs plugins for PCI devices, and
// cannot tell which disk holds a folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace artesian::pinned {

struct MachineNodes {
  std::vector<std::uint32_t>
      usable;  // ascending: nodes that have cores and memory that this process may use
  std::vector<std::uint32_t> of_cores;  // nodes with a core that this process may use
  bool policy_set = false;              // the user has set one; read only with several nodes
};
/// `root` is prepended to the paths of /proc and /sys, so that tests can simulate other machines.
MachineNodes machine_nodes(const std::string& root = "");

/// The nodes to which the memory's users are attached; users with an unknown node are left out.
struct MemoryUsers {
  std::optional<std::uint32_t> gpu = {};
  std::vector<std::uint32_t> disks = {};
};

enum class Near : std::uint8_t { Anything, Gpu, Disks, Cores };

/// Where memory shall lie; without nodes, the kernel chooses.
struct NodePolicy {
  std::vector<std::uint32_t> nodes = {};  // ascending; several nodes are interleaved
  Near near = Near::Anything;
  bool operator==(const NodePolicy&) const = default;
};
NodePolicy choose_nodes(const MachineNodes& machine, const MemoryUsers& users);

/// "on NUMA node 1, near the disk"; "wherever the kernel puts it".
std::string describe(const NodePolicy& policy);

/// The number in the file numa_node of a device's folder in /sys, unless it is -1.
std::optional<std::uint32_t> node_of_device(const std::string& folder);
/// Returns the node of the device at this PCI address, "0000:41:00.0", in any case.
std::optional<std::uint32_t> node_of_pci_device(std::string address, const std::string& root = "");

/// True if this thread has a memory policy other than the default (as set by numactl).
bool memory_policy_set() noexcept;

}  // namespace artesian::pinned
