// Proves doctor's lines about limits of this process, on simulated /proc and /sys trees of both
// versions of control groups: one line for each tight limit, none for others.
#include "tools/doctor/limits.h"

#include <gtest/gtest.h>

#include "tests/support/made_up_machine.h"

namespace artesian::tools {
namespace {

class Limits : public testing::Test {
 protected:
  Limits() { machine_.add_nvme("259:0", 0); }
  void group_of_version_2() {
    machine_.write("/proc/self/cgroup", "0::/slice/job");
    machine_.write("/proc/self/mountinfo",
                   "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw");
  }
  void group_of_version_1() {
    machine_.write("/proc/self/cgroup", "8:pids:/job\n7:blkio:/job\n0::/");
    machine_.write("/proc/self/mountinfo",
                   "37 31 0:34 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"
                   "38 31 0:35 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids");
  }
  Findings io_limits() const {
    return examine_io_limits({{.name = "nvme0n1", .nvme = true}, {.name = "gone"}},
                             machine_.root());
  }
  test_support::MadeUpMachine machine_;
};

TEST_F(Limits, WhereNothingIsKnownThereIsNoLine) {
  EXPECT_TRUE(io_limits().empty());
  EXPECT_TRUE(examine_thread_limit(machine_.root()).empty());
  EXPECT_TRUE(examine_aio_requests(machine_.root()).empty());
}

TEST_F(Limits, OnADiskOfAnyGroupAboveAreNamed) {
  group_of_version_2();
  machine_.write("/sys/fs/cgroup/slice/job/io.max",
                 "8:0 rbps=1 wbps=1 riops=1 wiops=1\n"
                 "259:0 rbps=200000000 wbps=max riops=max wiops=500");
  machine_.write("/sys/fs/cgroup/slice/io.max",
                 "259:0 rbps=max wbps=2500000000 riops=max wiops=max");
  const Findings findings = io_limits();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].name, "io_limit");
  EXPECT_EQ(findings[0].value, "nvme0n1: 200 MB/s read, 500 writes/s");
  EXPECT_EQ(findings[0].fix,
            "echo \"259:0 rbps=max wbps=max riops=max wiops=max\" "
            ">/sys/fs/cgroup/slice/job/io.max");
  EXPECT_EQ(findings[1].value, "nvme0n1: 2.5 GB/s written");
  EXPECT_EQ(count_of(findings, Level::Warn), 2u);
  machine_.write("/sys/fs/cgroup/slice/job/io.max", "259:00 rbps=1\n2259:0 rbps=1");
  machine_.write("/sys/fs/cgroup/slice/io.max", "259:0 rbps=max wbps=max riops=max wiops=max");
  EXPECT_TRUE(io_limits().empty());
}

TEST_F(Limits, OfVersion1AreThoseOfItsOwnGroup) {
  group_of_version_1();
  const std::string top = "/sys/fs/cgroup/blkio/";
  machine_.write(top + "blkio.throttle.read_bps_device", "259:0 1000000");
  machine_.write(top + "job/blkio.throttle.write_iops_device", "8:0 7\n259:0 90");
  machine_.write(top + "job/blkio.throttle.read_bps_device", "");
  const Findings findings = io_limits();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].value, "nvme0n1: 90 writes/s");
  EXPECT_EQ(findings[0].fix,
            "echo \"259:0 0\" >/sys/fs/cgroup/blkio/job/blkio.throttle.write_iops_device");
}

TEST_F(Limits, OfThreadsIsTheTightest) {
  group_of_version_2();
  machine_.write("/sys/fs/cgroup/slice/job/pids.max", "max");
  machine_.write("/sys/fs/cgroup/slice/job/pids.current", "20");
  EXPECT_TRUE(examine_thread_limit(machine_.root()).empty());
  machine_.write("/sys/fs/cgroup/slice/pids.max", "64");
  machine_.write("/sys/fs/cgroup/slice/pids.current", "60");
  const Findings tight = examine_thread_limit(machine_.root());
  ASSERT_EQ(tight.size(), 1u);
  EXPECT_EQ(tight[0].level, Level::Warn);
  EXPECT_EQ(tight[0].value, "4 more, by a control group's limit");
  EXPECT_EQ(tight[0].fix, "a larger /sys/fs/cgroup/slice/pids.max (docker: --pids-limit)");
  group_of_version_1();
  EXPECT_TRUE(examine_thread_limit(machine_.root()).empty());
  machine_.write("/sys/fs/cgroup/pids/job/pids.max", "50");
  machine_.write("/sys/fs/cgroup/pids/job/pids.current", "51");
  EXPECT_EQ(examine_thread_limit(machine_.root()).at(0).value,
            "0 more, by a control group's limit");
}

TEST_F(Limits, OfAioRequestsAreThoseOfTheMachine) {
  machine_.write("/proc/sys/fs/aio-nr", "1000");
  machine_.write("/proc/sys/fs/aio-max-nr", "65536");
  EXPECT_TRUE(examine_aio_requests(machine_.root()).empty());
  machine_.write("/proc/sys/fs/aio-nr", "65500");
  const Findings used = examine_aio_requests(machine_.root());
  ASSERT_EQ(used.size(), 1u);
  EXPECT_EQ(used[0].value, "65500 of the machine's 65536 used");
  EXPECT_EQ(used[0].fix, "sysctl fs.aio-max-nr=1048576");
}

}  // namespace
}  // namespace artesian::tools
