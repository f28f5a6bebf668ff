// Proves on which node memory is placed: what is read of simulated machines, the choice on every
// small one, and that the kernel is asked for exactly that, or not at all. Calls and refusals are
// real: an existing node is preferred, a missing one is refused, a filter refuses all.
#include "pinned/nodes.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "base/log.h"
#include "pinned/pool.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/temporary_directory.h"

namespace artesian::pinned {
namespace {

using Nodes = std::vector<std::uint32_t>;
using test_support::TemporaryDirectory;

struct MadeUp {
  const char* has_memory;
  const char* has_cpu;
  const char* mems_allowed;
  const char* cpus_allowed;
  const char* cpulists;  // of node 0, 1, ...
};

void write(const TemporaryDirectory& root, const MadeUp& machine) {
  const std::string nodes = "sys/devices/system/node/";
  root.write(nodes + "has_memory", std::string(machine.has_memory) + "\n");
  root.write(nodes + "has_cpu", std::string(machine.has_cpu) + "\n");
  std::istringstream lists(machine.cpulists);
  int node = 0;
  for (std::string list; lists >> list; ++node) {
    root.write(nodes + "node" + std::to_string(node) + "/cpulist", list + "\n");
  }
  root.write("proc/self/status", std::string("Name:\ta\nCpus_allowed_list:\t") +
                                     machine.cpus_allowed + "\nMems_allowed_list:\t" +
                                     machine.mems_allowed + "\n");
}

const MadeUp one_node{"0", "0", "0", "0-3", "0-3"};
const MadeUp two_sockets{"0-1", "0-1", "0-1", "0-15", "0-7 8-15"};

void expect_nodes(const char* what, const MadeUp& machine, const Nodes& usable,
                  const Nodes& of_cores) {
  const TemporaryDirectory root;
  write(root, machine);
  const MachineNodes found = machine_nodes(root.path());
  EXPECT_EQ(found.usable, usable) << what;
  EXPECT_EQ(found.of_cores, of_cores) << what;
}

TEST(MachineNodes, AreThoseWithCoresAndMemoryThatWeMayUse) {
  expect_nodes("two sockets", two_sockets, {0, 1}, {0, 1});
  expect_nodes("one node", one_node, {0}, {});
  expect_nodes("four, cores of two", {"0-3", "0-3", "0-3", "4,9", "0-3 4-7 8-11 12"}, {0, 1, 2, 3},
               {1, 2});
  expect_nodes("cores in turn", {"0-1", "0-1", "0-1", "0-3,8-11", "0,2,8,10 1,3,9,11"}, {0, 1},
               {0, 1});
  expect_nodes("a cpuset leaves one", {"0-1", "0-1", "1", "8-15", "0-7 8-15"}, {1}, {});
  expect_nodes("memory behind a bus", {"0-2", "0-1", "0-2", "0-15", "0-7 8-15"}, {0, 1}, {0, 1});
  expect_nodes("a node without memory", {"0,2", "0-2", "0,2", "0-3", "0 1 2-3"}, {0, 2}, {0, 2});
  expect_nodes("numbers with gaps", {"0,8", "0,8", "0-255", "1", "0-1"}, {0, 8}, {0});
  expect_nodes("lists that are none", {"0-", "x", "1-0", "0", "0"}, {}, {});
  expect_nodes("nor these", {"-1", "0-1-2", "0,,1", "0", "0"}, {}, {});
  expect_nodes("nor a part of one", {"0-1", "0-1,", "0-1", "0", "0"}, {}, {});
  expect_nodes("a list without end", {"0-4294967295", "0-1", "0-1", "0", "0"}, {}, {});
  const TemporaryDirectory nothing;
  EXPECT_TRUE(machine_nodes(nothing.path()).usable.empty());
}

void expect_choice(const MemoryUsers& users, Near near, const Nodes& nodes, const char* text) {
  const NodePolicy policy = choose_nodes({.usable = {0, 1, 2, 3}, .of_cores = {0, 1}}, users);
  EXPECT_EQ(policy.nodes, nodes) << text;
  EXPECT_EQ(policy.near, near) << text;
  EXPECT_EQ(describe(policy), text);
}

TEST(NodePolicy, TheNearestUserDecides) {
  expect_choice({.gpu = 3, .disks = {1}}, Near::Gpu, {3}, "on NUMA node 3, near the GPU");
  expect_choice({.disks = {2}}, Near::Disks, {2}, "on NUMA node 2, near the disk");
  expect_choice({.disks = {2, 0, 2}}, Near::Disks, {0, 2},
                "on NUMA nodes 0, 2 in turn, near the disks");
  expect_choice({.gpu = 7, .disks = {9, 1}}, Near::Disks, {1}, "on NUMA node 1, near the disk");
  expect_choice({.gpu = 7}, Near::Cores, {0, 1}, "on NUMA nodes 0, 1 in turn, near the cores");
  expect_choice({}, Near::Cores, {0, 1}, "on NUMA nodes 0, 1 in turn, near the cores");
  EXPECT_EQ(describe(choose_nodes({.usable = {0, 1}, .of_cores = {}}, {})),
            "on NUMA nodes 0, 1 in turn");
}

Nodes of_bits(unsigned bits) {
  Nodes nodes;
  for (std::uint32_t node = 0; node < 4; ++node) {
    if ((bits >> node & 1) != 0) nodes.push_back(node);
  }
  return nodes;
}

TEST(NodePolicy, NeverNamesANodeThatIsNotUsable) {
  for (unsigned usable = 0; usable < 16; ++usable) {
    for (unsigned cores = 0; cores < 16; ++cores) {
      for (unsigned users = 0; users < 16 * 5; ++users) {
        const MachineNodes machine{.usable = of_bits(usable), .of_cores = of_bits(cores)};
        MemoryUsers given{.disks = of_bits(users / 5)};
        if (users % 5 != 0) given.gpu = users % 5 - 1;
        const NodePolicy policy = choose_nodes(machine, given);
        ASSERT_EQ(policy.nodes.empty(), machine.usable.size() < 2);
        ASSERT_TRUE(std::includes(machine.usable.begin(), machine.usable.end(),
                                  policy.nodes.begin(), policy.nodes.end()));
        const unsigned gpu = given.gpu.has_value() ? 1u << *given.gpu : 0;
        if (policy.nodes.empty()) continue;
        ASSERT_EQ(policy.near == Near::Gpu, (gpu & usable) != 0);
        MachineNodes decided = machine;
        decided.policy_set = true;
        ASSERT_EQ(choose_nodes(decided, given), NodePolicy{});
      }
    }
  }
}

/// The nodes of this machine; none if the kernel, or a container, refuses the calls.
Nodes real_nodes() {
  const bool refused = syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) != 0;
  const Nodes usable = machine_nodes().usable;
  if (refused || usable.empty() || usable.front() > 60) return {};
  return {usable.front()};
}

struct KernelPolicy {
  int mode = -1;
  unsigned long mask = 0;
};

/// Returns the kernel's policy for the memory at this address.
KernelPolicy policy_at(const std::byte* data) {
  unsigned long mask[16] = {};  // 1024 nodes, as many as a kernel can have
  KernelPolicy found;
  if (syscall(SYS_get_mempolicy, &found.mode, mask, 8 * sizeof mask, data, MPOL_F_ADDR) != 0) {
    return {};
  }
  found.mask = mask[0];
  return found;
}

/// The node of each page of the range; negative: none.
std::vector<int> nodes_of_pages(std::span<std::byte> range) {
  std::vector<void*> pages;
  for (std::size_t at = 0; at < range.size(); at += 4096) pages.push_back(range.data() + at);
  std::vector<int> nodes(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    nodes.clear();
  }
  return nodes;
}

TEST(Placing, TheKernelPrefersTheNode) {
  const Nodes nodes = real_nodes();
  if (nodes.empty()) GTEST_SKIP() << "no NUMA calls here";
  for (const Lock lock : {Lock::Never, Lock::Try}) {
    const NodePolicy policy{.nodes = nodes, .near = Near::Disks};
    const auto pool = Pool::create({.bytes = 4 << 20, .lock = lock, .nodes = policy}).value();
    EXPECT_EQ(pool->statistics().nodes, policy);
    const KernelPolicy found = policy_at(pool->range().data());
    EXPECT_EQ(found.mode, MPOL_PREFERRED);
    EXPECT_EQ(found.mask, 1ul << nodes[0]);
    EXPECT_EQ(policy_at(pool->range().data() + (4 << 20) - 1).mode, MPOL_PREFERRED);
    pool->fault_in();
    if (machine_nodes().usable.size() > 1) continue;  // a full node falls back to others
    for (const int node : nodes_of_pages(pool->range())) {
      ASSERT_TRUE(node == static_cast<int>(nodes[0]) || node == -ENOENT) << node;  // swapped out
    }
  }
}

TEST(Placing, SeveralNodesTakeTurns) {
  const Nodes nodes = real_nodes();
  if (nodes.empty()) GTEST_SKIP() << "no NUMA calls here";
  // The kernel drops nodes that it does not have from a policy; the next node may exist or not.
  const NodePolicy policy{.nodes = {nodes[0], nodes[0] + 1}};
  const auto pool = Pool::create({.bytes = 2 << 20, .lock = Lock::Never, .nodes = policy}).value();
  EXPECT_EQ(pool->statistics().nodes, policy);
  const KernelPolicy found = policy_at(pool->range().data());
  EXPECT_EQ(found.mode, MPOL_INTERLEAVE);
  EXPECT_NE(found.mask & 1ul << nodes[0], 0u);
}

/// Makes two pools with this policy. Returns the number of warnings, or a negative number if
/// something is wrong. For child processes.
int warnings_of_two_pools(const NodePolicy& policy, const NodePolicy& expected) {
  static int warnings = 0;
  static bool named = true;
  set_log_sink([](LogLevel level, std::string_view line) {
    warnings += level == LogLevel::Warning ? 1 : 0;
    named = named && line.find("NUMA node") != line.npos && line.find("SYS_NICE") != line.npos;
  });
  for (int count = 0; count < 2; ++count) {
    const auto pool = Pool::create({.bytes = 1 << 20, .lock = Lock::Never, .nodes = policy});
    if (!pool.has_value() || (*pool)->statistics().nodes != expected) return -1;
    auto lease = (*pool)->lease(1 << 20);
    if (!lease.has_value()) return -2;
    std::fill_n(lease->data(), lease->size(), std::byte{7});
  }
  return named ? warnings : -3;
}

TEST(Placing, ARefusalIsOneWarning) {
  // A node that no machine has: the kernel refuses a policy without any node.
  if (!real_nodes().empty()) {
    const NodePolicy nowhere{.nodes = {63}};
    const auto in_child = [&] { return warnings_of_two_pools(nowhere, {}); };
    EXPECT_EQ(test_support::run_in_child(in_child), 1);
  }
  const auto filtered = [] {
    if (!test_support::refuse_call(SYS_mbind, EPERM)) return 100;
    return warnings_of_two_pools({.nodes = {0}}, {});
  };
  const int warnings = test_support::run_in_child(filtered);
  if (warnings == 100) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(warnings, 1);
}

TEST(Placing, OneNodeMakesNoCall) {
  const TemporaryDirectory root;
  write(root, one_node);
  const auto in_child = [&] {
    if (!test_support::refuse_call(SYS_mbind, EPERM)) return 100;
    const NodePolicy policy = choose_nodes(machine_nodes(root.path()), {.gpu = 0, .disks = {0}});
    return warnings_of_two_pools(policy, {});  // a call would be refused, and be a warning
  };
  const int warnings = test_support::run_in_child(in_child);
  if (warnings == 100) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(warnings, 0);
}

TEST(Placing, APolicyOfTheProcessStays) {
  const Nodes nodes = real_nodes();
  if (nodes.empty()) GTEST_SKIP() << "no NUMA calls here";
  const TemporaryDirectory several, single;
  write(several, two_sockets);
  write(single, one_node);
  const auto in_child = [&] {
    const unsigned long mask = 1ul << nodes[0];
    if (syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) return 1;
    if (memory_policy_set() || machine_nodes(several.path()).policy_set) return 2;
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, 8 * sizeof mask + 1) != 0) return 3;
    if (!memory_policy_set() || !machine_nodes(several.path()).policy_set) return 4;
    if (choose_nodes(machine_nodes(several.path()), {.gpu = 0}) != NodePolicy{}) return 5;
    return machine_nodes(single.path()).policy_set ? 6 : 0;  // not asked, since there is no choice
  };
  EXPECT_EQ(test_support::run_in_child(in_child), 0);
}

TEST(DeviceNodes, TheKernelsMinusOneIsNotKnown) {
  const TemporaryDirectory root;
  EXPECT_FALSE(node_of_device(root.path()).has_value());
  for (const auto& [text, node] : {std::pair("1\n", 1), std::pair("-1\n", -1), std::pair("", -1),
                                   std::pair("4294967296", -1)}) {
    root.write("numa_node", text);
    EXPECT_EQ(node_of_device(root.path()).value_or(1000), node < 0 ? 1000u : 1u) << text;
  }
  root.write("sys/bus/pci/devices/0000:c1:00.0/numa_node", "3\n");
  EXPECT_EQ(node_of_pci_device("0000:C1:00.0", root.path()), 3u) << "as CUDA spells it";
  EXPECT_FALSE(node_of_pci_device("", root.path()).has_value());
}

}  // namespace
}  // namespace artesian::pinned
