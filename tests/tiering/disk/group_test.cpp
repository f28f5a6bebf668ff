// Proves which folders count as on one disk, on simulated machines, as this one may have only one
// disk.
#include "tiering/disk/group.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/made_up_machine.h"

namespace artesian::tiering {
namespace {

TEST(DiskGroups, AreOfNamesInCommon) {
  using Groups = std::vector<std::uint64_t>;
  EXPECT_EQ(groups_by_disk({{"a"}, {"b"}, {"a"}, {}, {}}), (Groups{0, 1, 0, 3, 4}));
  EXPECT_EQ(groups_by_disk({{"a"}, {"b"}, {"b", "a"}, {"c"}}), (Groups{0, 0, 0, 3}))
      << "a RAID of both";
  EXPECT_EQ(groups_by_disk({{"a", "b"}, {"c"}, {"c", "d"}, {"b"}}), (Groups{0, 1, 1, 0}));
}

// Two file systems, one in a file of the other.
TEST(DiskGroups, ALoopDeviceSharesTheDiskOfItsFile) {
  test_support::MadeUpMachine machine;
  const test_support::TemporaryDirectory directory;
  const std::string folder = std::filesystem::canonical(directory.path());
  std::filesystem::create_directory(folder + "/in_file");
  machine.add_nvme("259:0", 0);
  const std::string loop = machine.add("virtual/block/loop0", "7:0");
  machine.write(loop + "/loop/backing_file", folder + "/image");
  machine.write("/proc/self/mountinfo", "30 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n31 30 7:0 / " +
                                            folder + "/in_file rw - ext4 /dev/loop0 rw");
  const auto names = [&](const std::string& path) { return disk_names_of(path, machine.root()); };
  EXPECT_EQ(names(folder + "/in_file/new"), names(folder));
  EXPECT_EQ(groups_by_disk({names(folder), names(folder + "/in_file")}),
            (std::vector<std::uint64_t>{0, 0}));
  EXPECT_TRUE(names(folder + "/no/such").empty());
}

TEST(DiskGroups, WithoutADiskTheFileSystemCounts) {
  test_support::MadeUpMachine machine;
  machine.write("/proc/self/mountinfo", "30 1 0:24 / / rw - overlay overlay rw");
  EXPECT_EQ(disk_names_of("/", machine.root()), std::vector<std::string>{"overlay at /"});
}

}  // namespace
}  // namespace artesian::tiering
