// Proves what doctor says of a disk's queue, PCIe link and temperature, on invented /sys trees: a
// line for what is amiss, none for what is well or not known.
#include "tools/doctor/device.h"

#include <gtest/gtest.h>

#include "tests/support/made_up_machine.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t mib = 1 << 20;

class Device : public testing::Test {
 protected:
  Device() { disk_folder_ = machine_.add_nvme("259:0", 0); }
  void queue(const std::string& name, const std::string& text) {
    machine_.write(disk_folder_ + "/queue/" + name, text);
  }
  void pci(const std::string& name, const std::string& text) {
    machine_.write("/sys/devices/pci0000:00/0000:01:00.0/" + name, text);
  }
  Findings look(std::uint64_t block_size = mib) const {
    return examine_device(disk_, block_size, machine_.root());
  }
  test_support::MadeUpMachine machine_;
  std::string disk_folder_;
  tiering::BlockDevice disk_{.name = "nvme0n1", .nvme = true};
};

TEST_F(Device, OfWhichNothingIsKnownHasNoLine) {
  EXPECT_TRUE(look().empty());
  disk_.name = "nvme7n1";
  EXPECT_TRUE(look().empty());
}

TEST_F(Device, ASchedulerForSlowDisksIsWarnedOf) {
  for (const char* well : {"[none] mq-deadline kyber bfq", "none [mq-deadline] bfq", "none"}) {
    queue("scheduler", well);
    EXPECT_TRUE(look().empty()) << well;
  }
  queue("scheduler", "none mq-deadline kyber [bfq]");
  const Findings slow = look();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].name, "scheduler");
  EXPECT_EQ(slow[0].value, "nvme0n1: bfq");
  EXPECT_EQ(slow[0].fix, "echo none >/sys/block/nvme0n1/queue/scheduler");
  disk_.rotational = true;
  EXPECT_TRUE(look().empty()) << "there it has its place";
}

TEST_F(Device, RequestsMuchSmallerThanBlocksAreWarnedOf) {
  queue("max_sectors_kb", "128");
  queue("max_hw_sectors_kb", "128");
  EXPECT_TRUE(look().empty()) << "the disk takes no more";
  queue("max_hw_sectors_kb", "2048");
  const Findings cut = look();
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0].value, "nvme0n1: at most 128 KiB, of 2048 that it can");
  EXPECT_EQ(cut[0].fix, "echo 1024 >/sys/block/nvme0n1/queue/max_sectors_kb");
  EXPECT_TRUE(look(128 << 10).empty()) << "no block is larger";
  queue("max_sectors_kb", "1280");
  EXPECT_TRUE(look(8 * mib).empty()) << "the kernel's own choice is enough";
}

TEST_F(Device, ALinkBelowWhatTheDiskCanIsWarnedOf) {
  pci("current_link_speed", "16.0 GT/s PCIe");
  pci("max_link_speed", "16.0 GT/s PCIe");
  pci("current_link_width", "4");
  pci("max_link_width", "4");
  EXPECT_TRUE(look().empty());
  pci("current_link_width", "2");
  Findings slow = look();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].value, "nvme0n1: 16 GT/s x2, of 16 GT/s x4 that it can");
  EXPECT_EQ(slow[0].meaning, "no more than 3.94 GB/s in one direction, of 7.88");
  pci("current_link_width", "4");
  pci("current_link_speed", "2.5 GT/s PCIe");
  slow = look();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].meaning, "no more than 1 GB/s in one direction, of 7.88");
  pci("current_link_speed", "Unknown");
  EXPECT_TRUE(look().empty());
}

TEST_F(Device, AHotDiskIsWarnedOf) {
  const std::string controller = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/";
  for (const std::string sensor : {"hwmon1/", "hwmon/hwmon1/", "device/hwmon/hwmon1/"}) {
    test_support::MadeUpMachine machine;
    machine.add_nvme("259:0", 0);
    machine.write(controller + sensor + "temp1_max", "81850");
    machine.write(controller + sensor + "temp1_input", "60850");
    EXPECT_TRUE(examine_temperature(disk_, machine.root()).empty());
    machine.write(controller + sensor + "temp1_input", "79850");
    const Findings hot = examine_temperature(disk_, machine.root());
    ASSERT_EQ(hot.size(), 1u) << sensor;
    EXPECT_EQ(hot[0].value, "nvme0n1: 79 °C, its limit is 81");
    machine.write(controller + sensor + "temp1_max", "65261850");
    EXPECT_TRUE(examine_temperature(disk_, machine.root()).empty()) << "it states none";
  }
}

}  // namespace
}  // namespace artesian::tools
