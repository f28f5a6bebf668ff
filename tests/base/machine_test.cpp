// Proves that available memory is the least that the machine and every control group above the
// process allow, on simulated machines (files below a folder), and that the process's own figures
// follow the memory that it touches.
#include "base/machine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

constexpr std::uint64_t mib = 1 << 20;

class MachineTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::string full = root_.path() + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream(full) << text;
  }
  void meminfo() {
    write("/proc/meminfo", "MemTotal: 999999 kB\nMemFree: 5 kB\nMemAvailable:    65536 kB\n");
  }
  const std::string& root() const { return root_.path(); }

 private:
  test_support::TemporaryDirectory root_;
};

TEST_F(MachineTest, NothingKnownIsZero) {
  EXPECT_EQ(available_memory(root()), 0u);
  EXPECT_EQ(process_memory(root()).bytes, 0u);
}

TEST_F(MachineTest, WithoutGroupsTheMachineDecides) {
  meminfo();
  EXPECT_EQ(available_memory(root()), 64 * mib);
}

TEST_F(MachineTest, TheTightestGroupOfVersion2Decides) {
  meminfo();
  write("/proc/self/cgroup", "0::/slice/job\n");
  write("/proc/self/mountinfo",
        "22 1 0:1 / /proc rw - proc proc rw\n"
        "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  const std::string job = "/sys/fs/cgroup/slice/job/";
  write(job + "memory.max", "max\n");
  EXPECT_EQ(available_memory(root()), 64 * mib);
  write(job + "memory.max", std::to_string(50 * mib) + "\n");
  write(job + "memory.current", std::to_string(20 * mib) + "\n");
  EXPECT_EQ(available_memory(root()), 30 * mib);
  write(job + "memory.stat", "anon 1\nfile 2\ninactive_file " + std::to_string(5 * mib) + "\n");
  EXPECT_EQ(available_memory(root()), 35 * mib);
  write("/sys/fs/cgroup/slice/memory.max", std::to_string(40 * mib) + "\n");
  write("/sys/fs/cgroup/slice/memory.current", std::to_string(30 * mib) + "\n");
  EXPECT_EQ(available_memory(root()), 10 * mib);
  write("/sys/fs/cgroup/slice/memory.current", std::to_string(41 * mib) + "\n");
  EXPECT_EQ(available_memory(root()), 0u);
}

TEST_F(MachineTest, AContainerOfVersion1SeesItsGroupAtTheMountPoint) {
  meminfo();
  write("/proc/self/cgroup", "9:cpu,cpuacct:/docker/1\n4:hugetlb,memory:/docker/1\n0::/\n");
  write("/proc/self/mountinfo",
        "31 22 0:27 /docker/1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 22 0:28 /docker/1 /sys/fs/cgroup/memory rw master:9 - cgroup cgroup rw,memory\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(48 * mib));
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(40 * mib));
  write("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(2 * mib) + "\n");
  EXPECT_EQ(available_memory(root()), 10 * mib);
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_EQ(available_memory(root()), 64 * mib);
}

TEST_F(MachineTest, OddFilesAreNoTrouble) {
  meminfo();
  write("/proc/self/cgroup", "\n:\n0::\nx\n0::no-slash\n");
  write("/proc/self/mountinfo", "- cgroup2\n1 2 3 4 5 6 - cgroup2 x\n1 - - - cgroup2 - - -\n");
  EXPECT_EQ(available_memory(root()), 64 * mib);
}

TEST(Machine, ThisMachineAnswers) {
  EXPECT_GT(available_memory(), 0u);
  const ProcessMemory before = process_memory();
  EXPECT_GT(before.bytes, 0u);
  EXPECT_LE(before.bytes, before.bytes_peak);
  std::vector<char> touched(64 * mib);
  std::memset(touched.data(), 3, touched.size());
  EXPECT_EQ(touched[12345], 3);  // so that the bytes are not optimised away
  const ProcessMemory after = process_memory();
  EXPECT_GE(after.bytes + mib, before.bytes + 64 * mib);
  EXPECT_GE(after.bytes_peak, after.bytes);
  EXPECT_GT(after.bytes_file, 0u);
  EXPECT_LT(after.bytes_file + 64 * mib, after.bytes);  // the touched memory has no file
}

}  // namespace
}  // namespace artesian
