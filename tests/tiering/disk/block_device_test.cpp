// Proves that the disks below a folder are found: through partitions, dm and md, on invented /sys
// trees of the kernel's form.
#include "tiering/disk/block_device.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/made_up_machine.h"

namespace artesian::tiering {
namespace {

using test_support::MadeUpMachine;

TEST(Disks, APartitionLeadsToItsDisk) {
  MadeUpMachine machine;
  const std::string disk = machine.add_nvme("259:0", 1);
  machine.add("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", "259:2");
  machine.write(disk + "/nvme0n1p2/partition", "2");
  for (const std::uint32_t minor : {0u, 2u}) {
    const auto disks = disks_below(259, minor, machine.root());
    ASSERT_EQ(disks.size(), 1u);
    EXPECT_EQ(disks[0].name, "nvme0n1");
    EXPECT_EQ(disks[0].model, "Fast Disk 2T");
    EXPECT_TRUE(disks[0].nvme);
    EXPECT_FALSE(disks[0].over_network);
    EXPECT_EQ(disks[0].numa_node, 1u);
  }
}

TEST(Disks, AnEncryptedVolumeOnARaidLeadsToAllOfItsDisks) {
  MadeUpMachine machine;
  const std::string nvme = machine.add_nvme("259:0", -1);
  const std::string partition =
      machine.add("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1", "259:1");
  machine.write(partition + "/partition", "1");
  const std::string sata = machine.add("pci0000:00/ata1/sda", "8:0");
  machine.write(sata + "/queue/rotational", "1");
  const std::string raid = machine.add("virtual/block/md0", "9:0");
  machine.below(raid, partition);
  machine.below(raid, sata);
  const std::string crypt = machine.add("virtual/block/dm-0", "253:0");
  machine.below(crypt, raid);
  const auto disks = disks_below(253, 0, machine.root());
  ASSERT_EQ(disks.size(), 2u);
  EXPECT_EQ(disks[0].name, "nvme0n1");
  EXPECT_FALSE(disks[0].numa_node.has_value()) << "the kernel's -1 is: not known";
  EXPECT_EQ(disks[1].name, "sda");
  EXPECT_TRUE(disks[1].rotational);
}

// A file system in a file is on the disk of the file system that holds the file.
TEST(Disks, ALoopDeviceLeadsToTheDiskOfItsFile) {
  MadeUpMachine machine;
  machine.add_nvme("259:0", 0);
  machine.write("/proc/self/mountinfo",
                "30 1 0:24 / / rw - overlay overlay rw\n"
                "31 30 259:0 / /data rw - ext4 /dev/nvme0n1 rw");
  const std::string loop = machine.add("virtual/block/loop0", "7:0");
  EXPECT_EQ(disks_below(7, 0, machine.root()).at(0).name, "loop0") << "it has no file";
  for (const char* file : {"/data/disk image", "/data/gone (deleted)", "/dev/nvme0n1"}) {
    machine.write(loop + "/loop/backing_file", file);
    const auto disks = disks_below(7, 0, machine.root());
    ASSERT_EQ(disks.size(), 1u) << file;
    EXPECT_EQ(disks[0].name, "nvme0n1") << file;
    EXPECT_EQ(disks[0].loop, "loop0") << file;
  }
  machine.write(loop + "/loop/backing_file", "/on/the/overlay");
  const auto hidden = disks_below(7, 0, machine.root());
  ASSERT_EQ(hidden.size(), 1u);
  EXPECT_EQ(hidden[0].name, "loop0");
  EXPECT_TRUE(hidden[0].virtual_disk);
}

TEST(Disks, OneThatIsNotThereIsNone) {
  MadeUpMachine machine;
  EXPECT_TRUE(disks_below(259, 7, machine.root()).empty());
  EXPECT_TRUE(disks_below(0, 44, machine.root()).empty());
}

TEST(Disks, ALoopOfDevicesEnds) {
  MadeUpMachine machine;
  const std::string first = machine.add("virtual/block/dm-0", "253:0");
  const std::string second = machine.add("virtual/block/dm-1", "253:1");
  machine.below(first, second);
  machine.below(second, first);
  EXPECT_TRUE(disks_below(253, 0, machine.root()).empty());
}

TEST(Places, AreTheFolderItselfOrTheParentOfWhatIsMissing) {
  const test_support::TemporaryDirectory directory;
  const std::string folder = std::filesystem::canonical(directory.path());
  EXPECT_EQ(nearest_folder(folder + "/").folder, folder);
  EXPECT_FALSE(nearest_folder(folder).missing);
  for (const std::string name : {"/new", "/new/", "/./x/../new"}) {
    EXPECT_EQ(nearest_folder(folder + name).folder, folder) << name;
    EXPECT_TRUE(nearest_folder(folder + name).missing) << name;
  }
  std::filesystem::create_symlink(folder, directory.file("link"));
  EXPECT_EQ(nearest_folder(folder + "/link").folder, folder);
  EXPECT_EQ(resolved_folder(folder + "/link/new"), folder + "/new");
  EXPECT_TRUE(nearest_folder(directory.write("file", "")).folder.empty());
  EXPECT_FALSE(nearest_folder(folder + "/file").missing);
  EXPECT_TRUE(nearest_folder(folder + "/no/parent").folder.empty());
  EXPECT_TRUE(nearest_folder(folder + "/no/parent").missing);
}

}  // namespace
}  // namespace artesian::tiering
