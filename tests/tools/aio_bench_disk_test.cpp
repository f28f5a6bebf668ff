// Proves that file systems whose figures mislead are told from disks, by number and for real.
#include "tools/aio_bench_disk.h"

#include <gtest/gtest.h>
#include <sys/vfs.h>

namespace artesian::bench {
namespace {

TEST(FileSystem, OfDisksIsFine) {
  for (const std::uint64_t magic : {0xEF53ull, 0x58465342ull, 0x9123683Eull, 0x12345678ull}) {
    EXPECT_EQ(file_system_warning(magic), "") << magic;
  }
  EXPECT_EQ(file_system_name(0xEF53), "ext4");
  EXPECT_EQ(file_system_name(0x12345678), "0x12345678");
}

TEST(FileSystem, ThatIsNoDiskIsSaid) {
  const struct {
    std::uint64_t magic;
    const char* name;
    const char* why;
  } wrong[] = {{0x6969, "nfs", "network"},
               {0xFF534D42, "cifs", "network"},
               {0x794C7630, "overlay", "container"},
               {0x01021994, "tmpfs", "memory"},
               {0x65735546, "fuse", "program"}};
  for (const auto& each : wrong) {
    EXPECT_EQ(file_system_name(each.magic), each.name);
    const std::string warning = file_system_warning(each.magic);
    EXPECT_TRUE(warning.starts_with(each.name)) << warning;
    EXPECT_NE(warning.find(each.why), warning.npos) << warning;
    EXPECT_NE(warning.find("--path"), warning.npos) << warning;
  }
}

TEST(FileSystem, IsReadFromTheKernel) {
  const DiskFacts here = disk_facts(".");
  EXPECT_FALSE(here.file_system.empty());
  EXPECT_FALSE(here.device.empty());
  struct statfs system {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) {
    GTEST_SKIP() << "no tmpfs here";
  }
  EXPECT_EQ(disk_facts("/dev/shm").file_system, "tmpfs");
  EXPECT_NE(disk_facts("/dev/shm").warning, "");
}

}  // namespace
}  // namespace artesian::bench
