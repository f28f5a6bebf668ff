#include "pinned/nodes.h"

#include <fmt/core.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include "base/kernel_files.h"
#include "base/split.h"

namespace artesian::pinned {
namespace {

constexpr std::uint32_t number_max = 1 << 16;  // a list with a larger number is invalid

/// Parses the kernel's list format "0-3,8", ascending. Invalid text gives an empty list.
std::vector<std::uint32_t> numbers_of(std::string_view list) {
  std::vector<std::uint32_t> numbers;
  for (const std::string_view range : split(list, ',')) {
    const char* const end = range.data() + range.size();
    std::uint32_t first = 0;
    auto read = std::from_chars(range.data(), end, first);
    std::uint32_t last = first;
    const bool two = read.ec == std::errc{} && read.ptr != end && *read.ptr == '-';
    if (two) read = std::from_chars(read.ptr + 1, end, last);
    const bool whole = read.ec == std::errc{} && read.ptr == end;
    if (!whole || last < first || last > number_max) return {};
    for (std::uint32_t number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::uint32_t> common(std::vector<std::uint32_t> some,
                                  const std::vector<std::uint32_t>& others) {
  std::erase_if(some, [&](std::uint32_t number) {
    return std::find(others.begin(), others.end(), number) == others.end();
  });
  std::sort(some.begin(), some.end());
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

}  // namespace

MachineNodes machine_nodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  const std::string process = root + "/proc/self/status";
  // Nodes without cores are a GPU's own memory or memory behind a bus, which is far from
  // everything.
  auto usable = common(numbers_of(first_line_of(folder + "has_memory")),
                       common(numbers_of(first_line_of(folder + "has_cpu")),
                              numbers_of(value_after(process, "Mems_allowed_list"))));
  MachineNodes machine{.usable = std::move(usable), .of_cores = {}};
  if (machine.usable.size() < 2) return machine;
  const auto cores = numbers_of(value_after(process, "Cpus_allowed_list"));
  for (const std::uint32_t node : machine.usable) {
    const std::string path = fmt::format("{}node{}/cpulist", folder, node);
    if (!common(numbers_of(first_line_of(path)), cores).empty()) machine.of_cores.push_back(node);
  }
  machine.policy_set = memory_policy_set();
  return machine;
}

NodePolicy choose_nodes(const MachineNodes& machine, const MemoryUsers& users) {
  if (machine.usable.size() < 2 || machine.policy_set) return {};
  std::vector<std::uint32_t> gpu;
  if (users.gpu.has_value()) gpu.push_back(*users.gpu);
  const NodePolicy wishes[] = {{.nodes = std::move(gpu), .near = Near::Gpu},
                               {.nodes = users.disks, .near = Near::Disks},
                               {.nodes = machine.of_cores, .near = Near::Cores}};
  for (const NodePolicy& wish : wishes) {
    auto nodes = common(wish.nodes, machine.usable);
    if (!nodes.empty()) return {.nodes = std::move(nodes), .near = wish.near};
  }
  return {.nodes = machine.usable};
}

std::string describe(const NodePolicy& policy) {
  if (policy.nodes.empty()) return "wherever the kernel puts it";
  const bool several = policy.nodes.size() > 1;
  std::string text = several ? "on NUMA nodes " : "on NUMA node ";
  for (std::size_t index = 0; index < policy.nodes.size(); ++index) {
    text += fmt::format("{}{}", index == 0 ? "" : ", ", policy.nodes[index]);
  }
  if (several) text += " in turn";
  switch (policy.near) {
    case Near::Gpu: return text + ", near the GPU";
    case Near::Disks: return text + (several ? ", near the disks" : ", near the disk");
    case Near::Cores: return text + ", near the cores";
    case Near::Anything: break;
  }
  return text;
}

std::optional<std::uint32_t> node_of_device(const std::string& folder) {
  const auto node = number_of(folder + "/numa_node");
  if (!node.has_value() || *node < 0 || *node > number_max) return std::nullopt;
  return static_cast<std::uint32_t>(*node);
}

std::optional<std::uint32_t> node_of_pci_device(std::string address, const std::string& root) {
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return node_of_device(root + "/sys/bus/pci/devices/" + address);
}

bool memory_policy_set() noexcept {
  int mode = MPOL_DEFAULT;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode != MPOL_DEFAULT;
}

}  // namespace artesian::pinned
