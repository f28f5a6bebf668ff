// Proves on simulated machines of two nodes where host memory is placed: on the GPU's node, else
// near the disk of a folder that is on it, or will be, else near the cores. With one node there is
// no choice.
#include "tiering/host_nodes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/made_up_machine.h"

namespace artesian::tiering {
namespace {

using pinned::Near;
using pinned::NodePolicy;
using test_support::MadeUpMachine;
using test_support::TemporaryDirectory;

/// Two nodes, with cores on the first alone, and the whole file system on a disk of node `disk`.
void fill(MadeUpMachine& machine, int disk) {
  const std::string nodes = "/sys/devices/system/node/";
  machine.write(nodes + "has_memory", "0-1");
  machine.write(nodes + "has_cpu", "0-1");
  machine.write(nodes + "node0/cpulist", "0-7");
  machine.write(nodes + "node1/cpulist", "8-15");
  machine.write("/proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1");
  machine.write("/proc/self/mountinfo", "21 1 259:0 / / rw - ext4 /dev/nvme0n1 rw");
  machine.add_nvme("259:0", disk);
}

class HostNodes : public testing::Test {
 protected:
  void SetUp() override {
    if (pinned::memory_policy_set()) GTEST_SKIP() << "numactl has decided";
  }
};

TEST_F(HostNodes, TheDiskBelowTheFolderDecides) {
  MadeUpMachine machine;
  fill(machine, 1);
  const TemporaryDirectory folder;
  const NodePolicy near_disk{.nodes = {1}, .near = Near::Disks};
  EXPECT_EQ(nodes_of_host({}, {folder.path()}, machine.root()), near_disk);
  EXPECT_EQ(nodes_of_host({}, {folder.path(), folder.file("new/")}, machine.root()), near_disk);
  const NodePolicy near_cores{.nodes = {0}, .near = Near::Cores};
  EXPECT_EQ(nodes_of_host({}, {}, machine.root()), near_cores);
  EXPECT_EQ(nodes_of_host({}, {folder.file("no/parent")}, machine.root()), near_cores);
}

TEST_F(HostNodes, AGpuComesFirst) {
  MadeUpMachine machine;
  fill(machine, 1);
  const TemporaryDirectory folder;
  const NodePolicy near_gpu{.nodes = {0}, .near = Near::Gpu};
  EXPECT_EQ(nodes_of_host(0, {folder.path()}, machine.root()), near_gpu);
}

TEST_F(HostNodes, ADiskOfNoKnownNodeLeavesItToTheCores) {
  MadeUpMachine machine;
  fill(machine, -1);
  const TemporaryDirectory folder;
  EXPECT_EQ(nodes_of_host({}, {folder.path()}, machine.root()).near, Near::Cores);
}

TEST_F(HostNodes, OneNodeLeavesNoChoice) {
  MadeUpMachine machine;
  fill(machine, 1);
  machine.write("/proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1");
  const TemporaryDirectory folder;
  EXPECT_EQ(nodes_of_host(1, {folder.path()}, machine.root()), NodePolicy{});
}

}  // namespace
}  // namespace artesian::tiering
