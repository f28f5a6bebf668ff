// Proves that parameters reach a device with memory of its own unchanged, from every home, with any
// number of staging buffers and in any order of copies. A demand overtakes prefetches. Damage, a
// hung disk and an end in the middle lead to errors or to nothing, never to wrong bytes.
#include "tiering/device_loader.h"

#include "kernels/cast.h"
#include "tests/support/separate_device.h"
#include "tests/tiering/tier_store_harness.h"
#include "tiering/residency.h"
#include "tiering/superblock.h"

namespace artesian::tiering {
namespace {

using test_support::SeparateDevice;

constexpr std::uint64_t block = 8192;             // bytes
constexpr std::uint64_t image = 5 * 4096 + 2048;  // elements of 2 bytes: 5.5 blocks
constexpr ShardId on_nvme{0};
constexpr ShardId on_nvme_too{1};
constexpr ShardId on_host{2};
constexpr ShardId on_device{3};
constexpr ShardId shards[] = {on_nvme, on_nvme_too, on_host, on_device};

struct Setting {
  DType computed = DType::Float32;
  std::uint32_t buffers = 2;
  SeparateDevice::Order order = SeparateDevice::Order::Late;
  bool divided = false;  // between two ranks, of which this is the second
};

class Loading {
 public:
  explicit Loading(const Setting& setting, double wait_seconds = 60.0)
      : setting_(setting), device(setting.order) {
    pool = device.create_arena(4 << 20).value();
    std::swap(harness.device, pool);  // the store's device homes are in the arena
    std::vector<ShardOptions> list;
    for (const Tier home : {Tier::Nvme, Tier::Nvme, Tier::Host, Tier::Device}) {
      list.push_back({.name = "s" + std::to_string(list.size()),
                      .home = home,
                      .bytes = image * 2,
                      .block_bytes = block});
    }
    store = harness.open(std::move(list), Verify::Full, wait_seconds).value();
    loader =
        DeviceLoader::create(
            {.staging_bytes = 2 * block, .staging_count = setting.buffers, .expansion_bytes = 4096},
            device, *store, executor, *harness.device, *harness.host)
            .value();
    std::vector<ResidentUnit> units;
    for (const ShardId shard : shards) {
      units.push_back({.shard = shard,
                       .stored = DType::BFloat16,
                       .computed = setting.computed,
                       .route = route_of(shard),
                       .image = setting.divided ? 2 * image : image,
                       .share = setting.divided ? image : 0,
                       .share_first = setting.divided ? image : 0,
                       .persistent = false});
      fill_home(shard);
    }
    residency = std::make_unique<Residency>(units, *store, *harness.device, executor, loader.get());
  }
  ~Loading() {
    EXPECT_TRUE(residency->clear().has_value());
    EXPECT_TRUE(device.finish_all().has_value());
    residency.reset();
    loader.reset();
    EXPECT_TRUE(store->close().has_value());
    store.reset();
    harness.device.reset();
    EXPECT_EQ(device.races, 0u);
  }

  Route route_of(ShardId shard) const {
    const bool as_stored = setting_.computed == DType::BFloat16 && !setting_.divided;
    const bool there = store->shard(shard).home == Tier::Device;
    return as_stored && there ? Route::OnDevice : Route::Queues;
  }

  static std::vector<std::uint16_t> stored(ShardId shard, std::uint64_t version = 0) {
    std::vector<std::uint16_t> values(image);
    for (std::uint64_t i = 0; i < image; ++i) {
      const std::uint64_t value = i * 4 + static_cast<std::uint64_t>(shard) + version * image;
      values[i] = float_to_bf16(static_cast<float>(value));
    }
    return values;
  }
  void fill_home(ShardId shard) {
    const auto values = stored(shard);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    if (store->shard(shard).home == Tier::Host) {
      std::memcpy(store->memory(shard), bytes, image * 2);
    } else if (store->shard(shard).home == Tier::Device) {
      EXPECT_TRUE(device.copy_to_device(store->memory(shard), bytes, image * 2).has_value());
      EXPECT_TRUE(device.finish_all().has_value());
    } else {
      BufferLease buffer = harness.buffer(image * 2);
      std::memcpy(buffer.data(), bytes, image * 2);
      for (std::uint64_t at = 0; at < image * 2; at += block) {
        store->seal(shard, at / block, buffer.data() + at);
      }
      Transfer completion;
      store->write(completion, shard, {0, image * 2}, std::move(buffer), aio::Priority::WriteBack);
      EXPECT_TRUE(store->wait(completion, shard).has_value());
    }
  }
  /// Acquires the unit and compares the values that the model would see.
  void expect_values(std::uint32_t unit) {
    const auto acquired = residency->acquire(unit);
    ASSERT_TRUE(acquired.has_value()) << acquired.error().to_string();
    compute(unit, stored(shards[unit]));
  }
  /// Compares an acquired unit with these values, and unpins it.
  void compute(std::uint32_t unit, const std::vector<std::uint16_t>& expected) {
    device.begin_compute();
    const std::byte* data = residency->data(unit);
    if (setting_.computed == DType::Float32) {
      std::vector<float> floats(expected.size());
      kernels::expand(expected.data(), DType::BFloat16, floats.data(), floats.size());
      EXPECT_EQ(std::memcmp(data, floats.data(), floats.size() * 4), 0) << unit;
    } else {
      EXPECT_EQ(std::memcmp(data, expected.data(), expected.size() * 2), 0) << unit;
    }
    device.end_compute();
    EXPECT_TRUE(residency->unpin(unit).has_value());
  }
  /// Acquires a divided unit; the first rank sends its share of this version.
  void expect_both_shares(std::uint32_t unit, std::uint64_t version) {
    ASSERT_TRUE(residency->acquire(unit).has_value());
    ASSERT_TRUE(residency->lacks_shares(unit));
    const auto own = stored(shards[unit], version);
    const auto other = stored(shards[unit], version + 100);
    const std::vector<std::span<std::byte>> shares = residency->shares(unit);
    std::vector<std::uint16_t> sent(image);
    ASSERT_TRUE(residency->order_bus(unit).has_value());
    ASSERT_TRUE(device
                    .enqueue_on_bus(std::vector<std::span<const std::byte>>{shares[1]},
                                    std::vector<std::span<std::byte>>{shares[0]},
                                    [&]() -> Result<void> {
                                      std::memcpy(sent.data(), shares[1].data(), image * 2);
                                      std::memcpy(shares[0].data(), other.data(), image * 2);
                                      return {};
                                    })
                    .has_value());
    ASSERT_TRUE(device.finish(device.record(Queue::Bus).value()).has_value());
    EXPECT_EQ(sent, own) << unit;
    ASSERT_TRUE(residency->join_shares(unit).has_value());
    std::vector<std::uint16_t> expected = other;
    expected.insert(expected.end(), own.begin(), own.end());
    compute(unit, expected);
  }

  const Setting setting_;
  SeparateDevice device;
  Harness harness{Backend::Memory};
  std::unique_ptr<pinned::Pool> pool;  // the harness's own
  SerialExecutor executor;
  std::unique_ptr<TierStore> store;
  std::unique_ptr<DeviceLoader> loader;
  std::unique_ptr<Residency> residency;
};

// The staging buffers hold a third of the unit. Nothing calls the loader while the host waits for
// other work of the device.
TEST(DeviceLoader, GoesOnWhileTheHostWaitsForTheDevice) {
  Loading loading({.buffers = 1, .order = SeparateDevice::Order::Early});
  std::vector<std::byte> target(4096);
  const std::uint64_t before = loading.device.bytes_to_device();
  ASSERT_TRUE(loading.residency->start(0, aio::Priority::Prefetch).has_value());
  const Deadline deadline = Deadline::after_seconds(60.0);
  while (loading.device.bytes_to_device() - before < image * 2) {
    ASSERT_LT(monotonic_ns(), deadline.at_ns);
    loading.device.runs_late = true;
    ASSERT_TRUE(loading.device.copy_to_host(target.data(), loading.store->memory(on_device), 4096));
    const DeviceFence copied = loading.device.record(Queue::ToHost).value();
    loading.device.runs_late = false;
    ASSERT_TRUE(loading.device.finish(copied).has_value());
    std::this_thread::yield();
  }
  loading.expect_values(0);
}

class LoadsFromEveryHome : public testing::TestWithParam<std::tuple<DType, std::uint32_t, int>> {};

TEST_P(LoadsFromEveryHome, AsItIs) {
  const auto [computed, buffers, order] = GetParam();
  Loading loading({computed, buffers, static_cast<SeparateDevice::Order>(order)});
  for (int round = 0; round < 3; ++round) {  // slots lie where others lay
    for (const std::uint32_t unit : {3u, 0u, 2u, 1u}) {
      ASSERT_TRUE(loading.residency->start(unit, aio::Priority::Prefetch).has_value());
    }
    for (const std::uint32_t unit : {1u, 3u, 0u, 2u}) loading.expect_values(unit);
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      ASSERT_TRUE(loading.residency->drop((unit + 2) % 4).has_value());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoadsFromEveryHome,
                         testing::Combine(testing::Values(DType::Float32, DType::BFloat16),
                                          testing::Values(1u, 2u, 5u), testing::Values(0, 1, 2)));

/// Copies this rank's new share into the slot, as an update on the host or on the device does.
void refresh_share(Loading& loading, Queue queue, std::uint32_t unit, std::uint64_t version) {
  const auto values = Loading::stored(shards[unit], version);
  BufferLease there = loading.harness.device->lease(image * 2).value();
  const auto* fresh = reinterpret_cast<const std::byte*>(values.data());
  if (queue == Queue::Compute) {
    ASSERT_TRUE(loading.device.copy_to_device(there.data(), fresh, image * 2).has_value());
    ASSERT_TRUE(loading.device.finish_all().has_value());
    fresh = there.data();
  }
  Residency& residency = *loading.residency;
  residency.begin_refresh(unit);
  ASSERT_TRUE(loading.device.join_queues().has_value());
  ASSERT_TRUE(residency.refresh_by_copy(queue, unit, image, image, fresh).has_value());
  ASSERT_TRUE(residency.end_refresh(unit).has_value());
  loading.expect_both_shares(unit, version);
  ASSERT_TRUE(loading.device.finish_all().has_value());  // before the copies' memory is given back
}

class LoadsShares : public LoadsFromEveryHome {};

TEST_P(LoadsShares, ToTheirPlacesAndAgainAfterAnUpdate) {
  const auto [computed, buffers, order] = GetParam();
  Loading loading({computed, buffers, static_cast<SeparateDevice::Order>(order), /*divided=*/true});
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      ASSERT_TRUE(loading.residency->start(unit, aio::Priority::Prefetch).has_value());
    }
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      ASSERT_NO_FATAL_FAILURE(loading.expect_both_shares(unit, 0));
      const Queue queue = unit % 2 == 0 ? Queue::ToDevice : Queue::Compute;
      ASSERT_NO_FATAL_FAILURE(refresh_share(loading, queue, unit, 1 + round));
      ASSERT_TRUE(loading.residency->drop(unit).has_value());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoadsShares,
                         testing::Combine(testing::Values(DType::Float32, DType::BFloat16),
                                          testing::Values(1u, 3u), testing::Values(0, 1, 2)));

TEST(DeviceLoader, WhatIsDroppedOnItsWayIsForgotten) {
  Loading loading({.buffers = 1});
  ASSERT_TRUE(loading.residency->start(0, aio::Priority::Prefetch).has_value());
  ASSERT_TRUE(loading.residency->start(1, aio::Priority::Prefetch).has_value());
  ASSERT_TRUE(loading.residency->drop(0).has_value());
  loading.expect_values(1);
  ASSERT_TRUE(loading.residency->start(0, aio::Priority::Demand).has_value());
  loading.expect_values(0);
}

TEST(DeviceLoader, RefreshReachesALiveSlot) {
  for (const DType computed : {DType::Float32, DType::BFloat16}) {
    Loading loading({computed, 2, SeparateDevice::Order::Random});
    ASSERT_TRUE(loading.residency->start(0, aio::Priority::Demand).has_value());
    loading.expect_values(0);
    ASSERT_TRUE(loading.device.join_queues().has_value());
    const auto fresh = loading.stored(shards[0]);  // the same values, in two parts
    using Part = std::pair<std::uint64_t, std::uint64_t>;
    for (const auto& [first, count] : {Part{0, 5000}, Part{5000, image - 5000}}) {
      const auto* part = reinterpret_cast<const std::byte*>(fresh.data() + first);
      ASSERT_TRUE(
          loading.residency->refresh_by_copy(Queue::ToDevice, 0, first, count, part).has_value());
    }
    ASSERT_TRUE(loading.device.finish_all().has_value());
    loading.expect_values(0);
  }
}

// One byte in every 4 KiB of the second shard in turn.
TEST(DeviceLoader, DamageAnywhereIsAnErrorThatNamesItsShardAndBlock) {
  Loading loading({});
  const auto swap = loading.harness.swap_file();
  const auto flip = [&](std::uint64_t at) {
    BufferLease sector = loading.harness.buffer(4096);
    const std::uint64_t begin = superblock_region_size + image * 2 + at;
    ASSERT_TRUE(swap->read_at(sector.data(), 4096, begin).has_value());
    sector.data()[100] ^= std::byte{1};
    ASSERT_TRUE(swap->write_at(sector.data(), 4096, begin).has_value());
  };
  for (std::uint64_t at = 0; at < image * 2; at += 4096) {
    flip(at);
    ASSERT_TRUE(loading.residency->start(1, aio::Priority::Demand).has_value());
    const auto acquired = loading.residency->acquire(1);
    ASSERT_FALSE(acquired.has_value()) << at;
    EXPECT_EQ(acquired.error().code, ErrorCode::Corrupt);
    const std::string where = "shard s1, block " + std::to_string(at / block);
    EXPECT_NE(acquired.error().message.find(where), std::string::npos) << acquired.error().message;
    ASSERT_TRUE(loading.residency->drop(1).has_value());
    flip(at);
  }
  for (const std::uint32_t unit : {0u, 1u}) {
    ASSERT_TRUE(loading.residency->start(unit, aio::Priority::Demand).has_value());
    loading.expect_values(unit);
  }
}

TEST(DeviceLoader, AFailingReadIsTheErrorOfItsUnitAlone) {
  Loading loading({});
  loading.harness.faults.offset = superblock_region_size;  // the first shard's
  loading.harness.faults.system_error = EIO;
  ASSERT_TRUE(loading.residency->start(0, aio::Priority::Prefetch).has_value());
  ASSERT_TRUE(loading.residency->start(1, aio::Priority::Prefetch).has_value());
  loading.expect_values(1);
  const auto acquired = loading.residency->acquire(0);
  ASSERT_FALSE(acquired.has_value());
  EXPECT_EQ(acquired.error().code, ErrorCode::Io);
  loading.harness.faults.system_error = 0;
}

TEST(DeviceLoader, AHungDiskIsATimeoutUntilItAnswers) {
  Loading loading({.buffers = 1}, /*wait_seconds=*/0.05);
  loading.harness.memory_engine->hold();
  ASSERT_TRUE(loading.residency->start(0, aio::Priority::Demand).has_value());
  ASSERT_TRUE(loading.residency->start(1, aio::Priority::Prefetch).has_value());
  for (const std::uint32_t unit : {0u, 1u}) {
    const auto acquired = loading.residency->acquire(unit);
    ASSERT_FALSE(acquired.has_value());
    EXPECT_EQ(acquired.error().code, ErrorCode::Timeout);
  }
  EXPECT_EQ(loading.residency->drop(0).error().code, ErrorCode::Timeout);
  loading.harness.memory_engine->release();
  ASSERT_TRUE(loading.residency->drop(0).has_value());
  loading.expect_values(1);
}

TEST(DeviceLoader, AFailingDeviceIsAnError) {
  Loading loading({});
  for (const std::uint64_t calls : {0u, 1u, 2u, 3u, 5u, 8u}) {
    loading.device.calls_until_failure = calls;
    auto outcome = loading.residency->start(2, aio::Priority::Demand);
    if (outcome.has_value()) outcome = loading.residency->acquire(2);
    if (outcome.has_value()) outcome = loading.residency->unpin(2);
    if (!outcome.has_value()) {
      EXPECT_EQ(outcome.error().code, ErrorCode::Io) << calls;
    }
    loading.device.calls_until_failure = ~std::uint64_t{0};
    ASSERT_TRUE(loading.residency->clear().has_value());
    ASSERT_TRUE(loading.device.finish_all().has_value());
  }
}

}  // namespace
}  // namespace artesian::tiering
