// Proves that the mount which holds a path is found in mountinfo of the kernel's form, and which
// file systems are no plain local disk.
#include "tiering/disk/mount.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace artesian::tiering {
namespace {

TEST(Mounts, TheDeepestAndLatestHoldsThePath) {
  const test_support::TemporaryDirectory machine;
  machine.write("proc/self/mountinfo",
                "21 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
                "30 21 0:40 / /data rw - nfs4 server:/export rw\n"
                "31 21 259:5 / /data rw,noatime shared:9 master:2 - xfs /dev/nvme1n1 rw\n"
                "32 21 0:41 / /with\\040blank rw - tmpfs tmpfs rw\n"
                "33 21 0:42 / /datasets rw - overlay overlay rw");
  EXPECT_EQ(mount_of("/elsewhere/x", machine.path()).type, "ext4");
  EXPECT_EQ(mount_of("/elsewhere/x", machine.path()).minor, 2u);
  EXPECT_EQ(mount_of("/data/swap", machine.path()).type, "xfs");
  EXPECT_EQ(mount_of("/data/swap", machine.path()).source, "/dev/nvme1n1");
  EXPECT_EQ(mount_of("/datasets", machine.path()).type, "overlay");
  EXPECT_EQ(mount_of("/with blank/a", machine.path()).type, "tmpfs");
}

TEST(Mounts, HaveTheOptionsOfBoth) {
  const test_support::TemporaryDirectory machine;
  machine.write("proc/self/mountinfo",
                "31 21 259:5 / /data rw,sync shared:9 - ext4 /dev/nvme1n1 rw,data=journal");
  EXPECT_EQ(mount_of("/data", machine.path()).options,
            (std::vector<std::string>{"rw", "sync", "rw", "data=journal"}));
}

TEST(FileSystemKinds, AreToldByTheKernelsName) {
  const std::pair<const char*, FileSystemKind> cases[] = {
      {"ext4", FileSystemKind::Local},
      {"xfs", FileSystemKind::Local},
      {"one that comes tomorrow", FileSystemKind::Local},
      {"", FileSystemKind::Local},
      {"btrfs", FileSystemKind::CopyOnWrite},
      {"nfs4", FileSystemKind::Network},
      {"fuse.s3", FileSystemKind::Program},
      {"fuseblk", FileSystemKind::Program},
      {"overlay", FileSystemKind::Container},
      {"tmpfs", FileSystemKind::Memory}};
  for (const auto& [type, kind] : cases) EXPECT_EQ(file_system_kind(type), kind) << type;
}

}  // namespace
}  // namespace artesian::tiering
