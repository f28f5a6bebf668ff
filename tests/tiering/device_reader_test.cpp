// Proves that a DeviceReader passes on every byte of its parts in order, for any lengths and any
// order of the device's copies, and that small parts share a buffer, a fence and a wait.
#include "tiering/device_reader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "tests/support/separate_device.h"

namespace artesian::tiering {
namespace {

using test_support::SeparateDevice;

constexpr std::uint64_t buffer_bytes = 8192;

/// Device memory with these bytes, at multiples of 64.
struct InDevice {
  InDevice(SeparateDevice& device, const std::vector<std::uint64_t>& lengths)
      : pool(device.create_arena(std::uint64_t{1} << 20).value()) {
    std::uint64_t all = 0;
    for (const std::uint64_t length : lengths) all += round_up(length, 64);
    memory = pool->lease(round_up(all, 4096)).value();
    std::uint64_t at = 0;
    for (const std::uint64_t length : lengths) {
      auto& part = bytes.emplace_back(length);
      for (std::uint64_t i = 0; i < length; ++i) {
        part[i] = static_cast<std::byte>(random_word(7, bytes.size(), i));
      }
      EXPECT_TRUE(device.copy_to_device(memory.data() + at, part.data(), length).has_value());
      parts.push_back({memory.data() + at, length});
      at += round_up(length, 64);
    }
    EXPECT_TRUE(device.finish(device.record(Queue::ToDevice).value()).has_value());
  }

  std::unique_ptr<pinned::Pool> pool;
  BufferLease memory;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<DeviceReader::Part> parts;
};

/// Reads them through two buffers. Returns the number of fences.
std::uint64_t read_all(SeparateDevice::Order order, const std::vector<std::uint64_t>& lengths) {
  SeparateDevice device(order, lengths.size());
  auto host =
      pinned::Pool::create({.bytes = 16 * buffer_bytes, .lock = pinned::Lock::Never}).value();
  const InDevice there(device, lengths);
  const auto reader = DeviceReader::create(device, *host, buffer_bytes, 2).value();
  std::vector<std::vector<std::byte>> got(lengths.size());
  const auto sink = [&](std::size_t part, std::uint64_t offset, std::span<const std::byte> piece) {
    EXPECT_EQ(offset, got[part].size());
    got[part].insert(got[part].end(), piece.begin(), piece.end());
    return Result<void>();
  };
  const std::uint64_t before = device.fences;
  EXPECT_TRUE(reader->read(there.parts, {}, sink).has_value());
  const std::uint64_t fences = device.fences - before;
  EXPECT_EQ(got, there.bytes);
  EXPECT_EQ(device.races, 0u);
  return fences;
}

TEST(DeviceReader, PartsOfAnyLengthComeWhole) {
  for (const auto order :
       {SeparateDevice::Order::Late, SeparateDevice::Order::Early, SeparateDevice::Order::Random}) {
    std::vector<std::uint64_t> lengths{1, buffer_bytes, 3 * buffer_bytes + 5, 64, 65, 8128, 8129};
    for (std::uint64_t i = 0; i < 40; ++i) lengths.push_back(1 + random_word(3, 1, i) % 20'000);
    read_all(order, lengths);
  }
}

TEST(DeviceReader, SmallPartsShareABufferAndAWait) {
  const std::vector<std::uint64_t> small(64, 512);  // 32 KiB in all
  EXPECT_EQ(read_all(SeparateDevice::Order::Late, small), 4u);
  EXPECT_EQ(read_all(SeparateDevice::Order::Late, {4 * buffer_bytes}), 4u);
}

}  // namespace
}  // namespace artesian::tiering
