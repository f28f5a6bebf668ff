// Runs the contract of device backends on the host device and on the SeparateDevice, in each of its
// orders. Proves that the latter shows a missing fence, a target that is read too soon, and each of
// its faults. On a GPU: cuda_device_test.cpp.
#include "tests/tiering/device/device_contract.h"

#include "tests/support/separate_device.h"
#include "tiering/device/host_device.h"

namespace artesian::tiering {
namespace {

using test_support::SeparateDevice;

struct Host {
  static std::unique_ptr<Device> make() { return std::make_unique<HostDevice>(); }
};
template <SeparateDevice::Order order>
struct Separate {
  static std::unique_ptr<Device> make() {
    auto device = std::make_unique<SeparateDevice>(order);
    device->bytes_max = 1 << 30;
    return device;
  }
};
using Backends =
    testing::Types<Host, Separate<SeparateDevice::Order::Late>,
                   Separate<SeparateDevice::Order::Early>, Separate<SeparateDevice::Order::Random>>;
INSTANTIATE_TYPED_TEST_SUITE_P(WithoutAGpu, DeviceContract, Backends);

class SeparateDeviceTest : public testing::Test {
 protected:
  void TearDown() override {
    device.hangs = false;
    device.calls_until_failure = ~std::uint64_t{0};
    EXPECT_TRUE(device.finish_all().has_value());
  }
  SeparateDevice device;
  std::unique_ptr<pinned::Pool> pool = device.create_arena(1 << 16).value();
  std::byte* memory = pool->range().data();
  Bytes host = random_bytes(4096, 1);
  Bytes back = Bytes(4096);  // until TearDown: copies run late
};

TEST_F(SeparateDeviceTest, FindsAMissingFenceBetweenCopies) {
  device.expect_races = true;
  ASSERT_TRUE(device.copy_to_device(memory, host.data(), 4096).has_value());
  ASSERT_TRUE(device.copy_to_host(back.data(), memory, 4096).has_value());
  EXPECT_EQ(device.races, 1u);
}

TEST_F(SeparateDeviceTest, FindsACopyThatDoesNotWaitForComputing) {
  device.expect_races = true;
  ASSERT_TRUE(device.copy_to_device(memory, host.data(), 4096).has_value());
  const auto loaded = device.record(Queue::ToDevice).value();
  ASSERT_TRUE(device.wait(Queue::Compute, loaded).has_value());  // a stage reads it
  const auto used = device.record(Queue::Compute).value();
  const Bytes other = random_bytes(4096, 2);
  ASSERT_TRUE(device.wait(Queue::ToDevice, used).has_value());
  ASSERT_TRUE(device.copy_to_device(memory, other.data(), 4096).has_value());
  EXPECT_EQ(device.races, 0u);
  const auto again = device.record(Queue::ToDevice).value();
  ASSERT_TRUE(device.wait(Queue::Compute, again).has_value());
  ASSERT_TRUE(device.copy_to_device(memory, host.data(), 4096).has_value());
  EXPECT_EQ(device.races, 1u);
  ASSERT_TRUE(device.finish_all().has_value());
}

TEST_F(SeparateDeviceTest, FindsAGradientThatIsReadBeforeItIsComputed) {
  device.expect_races = true;
  for (int stage = 0; stage < 2; ++stage) {
    device.begin_compute();
    device.end_compute();
  }
  ASSERT_TRUE(device.copy_to_host(back.data(), host.data(), 4096).has_value());
  EXPECT_EQ(device.races, 1u);
  const auto written = device.record(Queue::Compute).value();
  ASSERT_TRUE(device.wait(Queue::ToHost, written).has_value());
  ASSERT_TRUE(device.copy_to_host(back.data(), host.data(), 4096).has_value());
  EXPECT_EQ(device.races, 1u);
}

TEST_F(SeparateDeviceTest, ATargetHoldsNothingUntilItsCopyHasRun) {
  ASSERT_TRUE(device.copy_to_device(memory, host.data(), 4096).has_value());
  const auto there = device.record(Queue::ToDevice).value();
  ASSERT_TRUE(device.wait(Queue::ToHost, there).has_value());
  ASSERT_TRUE(device.copy_to_host(back.data(), memory, 4096).has_value());
  EXPECT_EQ(back, Bytes(4096, std::byte{0xff}));
  ASSERT_TRUE(device.finish(device.record(Queue::ToHost).value()).has_value());
  EXPECT_EQ(back, host);
}

TEST_F(SeparateDeviceTest, ItsMemoryIsOutOfTheHostsReach) {
  EXPECT_DEATH({ std::memset(memory, 0, 1); }, "");
  device.begin_compute();
  std::memset(memory, 0, 1);
  device.end_compute();
}

TEST_F(SeparateDeviceTest, FailsAndHangsAsTold) {
  ASSERT_TRUE(device.copy_to_device(memory, host.data(), 4096).has_value());
  const auto fence = device.record(Queue::ToDevice).value();
  device.hangs = true;
  EXPECT_FALSE(device.ready(fence));
  EXPECT_EQ(device.finish(fence).error().code, ErrorCode::Timeout);
  device.hangs = false;
  device.calls_until_failure = 1;
  EXPECT_TRUE(device.zero(Queue::Compute, memory + 8192, 16).has_value());
  EXPECT_EQ(device.zero(Queue::Compute, memory + 8192, 16).error().code, ErrorCode::Io);
  EXPECT_EQ(device.finish(fence).error().code, ErrorCode::Io);
}

}  // namespace
}  // namespace artesian::tiering
