// Proves that a depot returns its inputs unchanged: from host memory and from NVMe, with any number
// of buffers, if an input is shorter than its place, if some are left out, after a pass that was
// broken off, and through a device with memory of its own in every order that fences allow. A disk
// that fails, is full, lies or hangs is one error that names the shard.
#include "tiering/depot.h"

#include "tests/support/separate_device.h"
#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

using test_support::SeparateDevice;

constexpr std::uint64_t block = 8192;
constexpr std::uint64_t place = 5 * 8192 + 4096;  // bytes of each shard: the last block is short
constexpr std::size_t shards = 6;

std::uint64_t length_of(std::size_t index) {  // some are shorter than their place, by odd bytes
  return index % 2 == 0 ? place : place - 3000 * index - 1;
}

class Deposits {
 public:
  explicit Deposits(std::uint32_t buffers, Device& on = host_device(),
                    Backend backend = Backend::Memory, double wait_seconds = 60.0)
      : harness(backend), device_(on) {
    std::vector<ShardOptions> list;
    for (std::size_t index = 0; index < shards; ++index) {
      list.push_back({.name = "h." + std::to_string(index) + " input 0",
                      .home = index % 3 == 1 ? Tier::Host : Tier::Nvme,
                      .bytes = place,
                      .block_bytes = block});
    }
    store = harness.open(std::move(list), Verify::Full, wait_seconds).value();
    depot = Depot::create({.buffer_bytes = block, .buffer_count = buffers}, *store, *harness.host,
                          device_, executor_)
                .value();
  }
  ~Deposits() {
    if (forgotten) return;
    EXPECT_TRUE(depot->forget().has_value());
    EXPECT_TRUE(depot->finish().has_value());
    depot.reset();
    EXPECT_TRUE(store->close().has_value());
  }

  /// Different bytes in every pass.
  std::vector<std::byte> bytes(std::size_t index, std::uint64_t pass) const {
    std::vector<std::byte> made(round_up(length_of(index), 8));
    fill(made.data(), made.size(), pass * 100 + index);
    made.resize(length_of(index));
    return made;
  }
  /// As a model does: the source is computed in the queue Compute, and freed after the fence.
  Result<void> put(std::size_t index, std::uint64_t pass) {
    device_.begin_compute();
    const auto source = bytes(index, pass);
    device_.end_compute();
    ARTESIAN_TRY(written, device_.record(Queue::Compute));
    ARTESIAN_TRY(read, depot->put(ShardId(index), source, written));
    return device_.finish(read);
  }
  Result<void> expect(const std::vector<std::size_t>& order) {
    std::vector<Depot::Stored> stored;
    for (const auto index : order) stored.push_back({ShardId(index), length_of(index)});
    return depot->expect(stored);
  }
  Result<std::vector<std::byte>> take(std::size_t index) {
    std::vector<std::byte> target(length_of(index));
    ARTESIAN_TRY(free, device_.record(Queue::Compute));
    ARTESIAN_TRY(loaded, depot->take(ShardId(index), target, free));
    ARTESIAN_TRY_VOID(device_.wait(Queue::Compute, loaded));
    device_.begin_compute();
    std::vector<std::byte> seen = target;
    device_.end_compute();
    ARTESIAN_TRY_VOID(device_.finish(loaded));
    return seen;
  }
  void put_all(std::uint64_t pass) {
    for (std::size_t index = 0; index < shards; ++index) {
      const auto done = put(index, pass);
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
    }
  }
  void expect_taken(std::size_t index, std::uint64_t pass) {
    const auto taken = take(index);
    ASSERT_TRUE(taken.has_value()) << taken.error().to_string();
    EXPECT_TRUE(*taken == bytes(index, pass)) << index << " in pass " << pass;
  }
  void take_all(std::uint64_t pass) {
    ASSERT_TRUE(expect({5, 4, 3, 2, 1, 0}).has_value());
    for (std::size_t index = shards; index-- > 0;) expect_taken(index, pass);
    ASSERT_TRUE(depot->forget().has_value());
  }
  Harness harness;
  std::unique_ptr<TierStore> store;
  std::unique_ptr<Depot> depot;
  bool forgotten = false;  // the test has closed it

 private:
  Device& device_;
  SerialExecutor executor_;
};

class DepotOn : public testing::TestWithParam<Backend> {};

TEST_P(DepotOn, GivesBackWhatItWasGivenHoweverFewTheBuffers) {
  for (const std::uint32_t buffers : {1u, 2u, 3u, 7u, 64u}) {
    SCOPED_TRACE(buffers);
    Deposits deposits(buffers, host_device(), GetParam());
    std::uint64_t written = 0;
    for (std::size_t index = 0; index < shards; ++index) {
      if (index % 3 != 1) written += std::min(place, round_up(length_of(index), block));
    }
    for (std::uint64_t pass = 0; pass < 3; ++pass) {
      const auto before = deposits.store->statistics();
      deposits.put_all(pass);
      deposits.take_all(pass);
      const auto after = deposits.store->statistics();
      EXPECT_EQ(after.bytes_written - before.bytes_written, written);
      EXPECT_EQ(after.bytes_read - before.bytes_read, written);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Disks, DepotOn,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::Simulated),
                         backend_name);

// Neither bytes of another input nor earlier content of the buffer reach the disk.
TEST(Depot, WhatIsBehindALastBlockIsZero) {
  for (const std::uint32_t buffers : {1u, 3u}) {
    Deposits deposits(buffers);
    for (std::uint64_t pass = 0; pass < 2; ++pass) deposits.put_all(pass);
    for (std::size_t index = 0; index < shards; ++index) {
      if (index % 3 == 1) continue;  // in host memory
      ASSERT_TRUE(deposits.store->finish_writes(ShardId(index)).has_value());
      const std::uint64_t length = length_of(index);
      const std::uint64_t begin = length / block * block;
      const std::uint64_t end = std::min(begin + block, place);
      const auto last = read_range(deposits.harness, *deposits.store, ShardId(index),
                                   {.offset = begin, .length = end - begin});
      ASSERT_TRUE(last.has_value()) << last.error().to_string();
      const auto given = deposits.bytes(index, 1);
      EXPECT_EQ(std::memcmp(last->data(), given.data() + begin, length - begin), 0) << index;
      EXPECT_TRUE(std::all_of(last->data() + (length - begin), last->data() + (end - begin),
                              [](std::byte byte) { return byte == std::byte{0}; }))
          << index;
    }
  }
}

TEST(Depot, SomeMayBeLeftOutAndAPassMayEndInItsMiddle) {
  for (const std::uint32_t buffers : {1u, 4u, 40u}) {
    SCOPED_TRACE(buffers);
    Deposits deposits(buffers);
    deposits.put_all(1);
    ASSERT_TRUE(deposits.expect({5, 4, 3, 2, 1, 0}).has_value());
    deposits.expect_taken(5, 1);
    deposits.expect_taken(2, 1);  // 4 and 3 are not wanted
    ASSERT_TRUE(deposits.depot->forget().has_value());
    deposits.put_all(2);  // and none is taken
    ASSERT_TRUE(deposits.depot->forget().has_value());
    ASSERT_TRUE(deposits.put(0, 3).has_value());
    ASSERT_TRUE(deposits.put(0, 4).has_value());  // its writes may still be in flight
    ASSERT_TRUE(deposits.depot->forget().has_value());
    deposits.put_all(5);
    deposits.take_all(5);
  }
}

TEST(Depot, OnASeparateDeviceEveryOrderThatFencesAllowGivesTheSameBytes) {
  for (const auto order :
       {SeparateDevice::Order::Late, SeparateDevice::Order::Early, SeparateDevice::Order::Random}) {
    for (const std::uint32_t buffers : {1u, 3u, 64u}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(order)) + " " + std::to_string(buffers));
      SeparateDevice device(order, buffers);
      {
        Deposits deposits(buffers, device);
        for (std::uint64_t pass = 0; pass < 3; ++pass) {
          deposits.put_all(pass);
          if (pass != 1) {
            deposits.take_all(pass);
          } else {
            ASSERT_TRUE(deposits.depot->forget().has_value());
          }
        }
      }
      EXPECT_EQ(device.races, 0u);
    }
  }
}

/// The first error of a pass.
Error failure_of(Deposits& deposits) {
  for (std::size_t index = 0; index < shards; ++index) {
    auto done = deposits.put(index, 1);
    if (!done.has_value()) return std::move(done).error();
  }
  auto begun = deposits.expect({5, 4, 3, 2, 1, 0});
  if (!begun.has_value()) return std::move(begun).error();
  for (std::size_t index = shards; index-- > 0;) {
    auto taken = deposits.take(index);
    if (!taken.has_value()) return std::move(taken).error();
  }
  return {};
}

TEST(DepotFaults, AFailingOrFullDiskIsOneErrorThatNamesTheShard) {
  struct Fault {
    aio::Operation operation;
    int system_error;
    ErrorCode code;
    const char* words;
  };
  for (const Fault& fault : {Fault{aio::Operation::Write, EIO, ErrorCode::Io, "writing shard h."},
                             Fault{aio::Operation::Write, ENOSPC, ErrorCode::NoSpace, "writing"},
                             Fault{aio::Operation::Read, EIO, ErrorCode::Io, "reading shard h."}}) {
    for (const std::uint32_t buffers : {1u, 64u}) {
      SCOPED_TRACE(std::string(fault.words) + " " + std::to_string(fault.system_error));
      Deposits deposits(buffers);
      deposits.harness.faults.operation = fault.operation;
      deposits.harness.faults.offset = 16384 + place + 2 * block;  // of the second on nvme
      deposits.harness.faults.system_error = fault.system_error;
      const Error failed = failure_of(deposits);
      EXPECT_EQ(failed.code, fault.code) << failed.to_string();
      EXPECT_EQ(failed.system_error, fault.system_error);
      EXPECT_NE(failed.message.find(fault.words), std::string::npos) << failed.message;
      deposits.harness.faults.system_error = 0;
      static_cast<void>(deposits.depot->forget().has_value());
      static_cast<void>(deposits.depot->finish().has_value());
      deposits.forgotten = true;
      deposits.depot.reset();
      static_cast<void>(deposits.store->close().has_value());
    }
  }
}

TEST(DepotFaults, AFlippedBitIsCorruptAndNamesTheShard) {
  Deposits deposits(2);
  deposits.put_all(1);
  ASSERT_TRUE(deposits.depot->finish().has_value());
  const auto file = deposits.harness.swap_file();
  std::vector<std::byte> page(4096);
  BufferLease buffer = deposits.harness.buffer(4096);
  const std::uint64_t offset = 16384 + place;  // of h.2, the second on nvme
  ASSERT_TRUE(file->read_at(buffer.data(), 4096, offset).has_value());
  buffer.data()[77] ^= std::byte{4};
  ASSERT_TRUE(file->write_at(buffer.data(), 4096, offset).has_value());
  ASSERT_TRUE(deposits.expect({5, 4, 3, 2, 1, 0}).has_value());
  for (const std::size_t index : {5u, 4u, 3u}) deposits.expect_taken(index, 1);
  const auto taken = deposits.take(2);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::Corrupt);
  EXPECT_NE(taken.error().message.find("shard h.2 input 0, block 0"), std::string::npos)
      << taken.error().message;
}

TEST(DepotFaults, ADiskThatStopsAnsweringIsATimeoutThatNamesTheShard) {
  for (const bool reading : {false, true}) {
    SCOPED_TRACE(reading);
    Deposits deposits(2, host_device(), Backend::Memory, 0.1);
    if (reading) deposits.put_all(1);
    deposits.harness.memory_engine->hold();
    const Error failed = [&] {
      if (!reading) return failure_of(deposits);
      static_cast<void>(deposits.expect({5, 4, 3, 2, 1, 0}).has_value());
      auto taken = deposits.take(5);
      return taken.has_value() ? Error{} : std::move(taken).error();
    }();
    EXPECT_EQ(failed.code, ErrorCode::Timeout);
    EXPECT_NE(failed.message.find(reading ? "reading shard h.5 input 0" : "writing shard h.0"),
              std::string::npos)
        << failed.message;
    EXPECT_FALSE(deposits.depot->finish().has_value());
    deposits.harness.memory_engine->release();  // it answers after all
    EXPECT_TRUE(deposits.depot->finish().has_value());
  }
}

}  // namespace
}  // namespace artesian::tiering
