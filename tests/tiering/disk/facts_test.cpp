// Proves that file systems whose figures mislead are distinguished from disks, by name and on real
// ones.
#include "tiering/disk/facts.h"

#include <gtest/gtest.h>
#include <sys/vfs.h>

#include <filesystem>

#include "tiering/disk/mount.h"

namespace artesian::tiering {
namespace {

TEST(FileSystem, OfDisksIsFine) {
  for (const char* type : {"ext4", "xfs", "btrfs", "new one"}) {
    EXPECT_EQ(file_system_warning(type), "") << type;
  }
}

TEST(FileSystem, ThatIsNoDiskIsSaid) {
  const struct {
    const char* type;
    const char* why;
  } wrong[] = {{"nfs4", "network"},
               {"cifs", "network"},
               {"overlay", "container"},
               {"tmpfs", "memory"},
               {"fuse.sshfs", "program"}};
  for (const auto& each : wrong) {
    const std::string warning = file_system_warning(each.type);
    EXPECT_TRUE(warning.starts_with(each.type)) << warning;
    EXPECT_NE(warning.find(each.why), warning.npos) << warning;
    EXPECT_NE(warning.find("--path"), warning.npos) << warning;
  }
}

TEST(FileSystem, IsReadFromTheKernel) {
  const DiskFacts here = disk_facts(".");
  EXPECT_FALSE(here.device.empty());
  // Within a chroot the kernel lists no mount that holds the root.
  const bool listed = !mount_of(std::filesystem::canonical(".")).type.empty();
  EXPECT_EQ(!here.file_system.empty(), listed);
  struct statfs system {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) {
    GTEST_SKIP() << "no tmpfs here";
  }
  EXPECT_EQ(disk_facts("/dev/shm").file_system, "tmpfs");
  EXPECT_NE(disk_facts("/dev/shm").warning, "");
}

TEST(DeviceWarning, IsOfALoopDeviceAlone) {
  EXPECT_NE(device_warning("loop0").find("loop0 is a loop device"), std::string::npos);
  EXPECT_NE(device_warning("loop12p1"), "");
  for (const char* name : {"", "259:2", "nvme0n1p1", "sda", "dm-0"}) {
    EXPECT_EQ(device_warning(name), "") << name;
  }
}

}  // namespace
}  // namespace artesian::tiering
