// Proves what a disk that stops answering costs: one deadline, a Timeout that says what hangs, and
// no abort; that what comes back late is taken as if nothing had been; and that more transfers than
// the table of those in flight holds wait for their turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "tests/tiering/tier_store_harness.h"
#include "tiering/in_flight.h"
#include "tiering/residency.h"
#include "tiering/staging_ring.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector = 4096;
constexpr double patience_s = 0.3;
// Of 32 transfers, each with a deadline of its own; what is left above one deadline is for a busy
// machine.
constexpr double too_many_deadlines_s = 32 * patience_s;
constexpr ShardId first{0};

class StalledDisk : public testing::Test {
 protected:
  StalledDisk() {
    store_ = harness_
                 .open({{.name = "param", .bytes = shard_bytes, .block_bytes = sector},
                        {.name = "state", .bytes = shard_bytes, .block_bytes = sector}},
                       Verify::Full, patience_s)
                 .value();
    for (std::uint32_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(write_range(harness_, *store_, ShardId{i}, {0, shard_bytes}, i).has_value());
    }
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void stall() {
    harness_.memory_engine->hold();
    start_ = std::chrono::steady_clock::now();
  }

  static constexpr std::uint64_t shard_bytes = 64 * sector;
  Harness harness_{Backend::Memory};
  std::unique_ptr<TierStore> store_;
  std::chrono::steady_clock::time_point start_;
};

TEST_F(StalledDisk, CostsOneDeadlineNotOnePerTransfer) {
  stall();
  std::deque<Transfer> reads(32);
  for (auto& read : reads) {
    store_->read(read, first, {0, sector}, harness_.buffer(sector), aio::Priority::Demand);
  }
  for (auto& read : reads) {
    const auto waited = store_->wait(read, first);
    ASSERT_FALSE(waited.has_value());
    EXPECT_EQ(waited.error().code, ErrorCode::Timeout);
  }
  EXPECT_FALSE(store_->close().has_value());
  EXPECT_GE(seconds(), patience_s);
  EXPECT_LT(seconds(), too_many_deadlines_s);

  harness_.memory_engine->release();
  for (auto& read : reads) EXPECT_TRUE(store_->wait(read, first).has_value());
  EXPECT_TRUE(store_->close().has_value());
}

TEST_F(StalledDisk, WaitsAreWholeAgainOnceSomethingCameBack) {
  stall();
  Transfer read;
  store_->read(read, first, {0, sector}, harness_.buffer(sector), aio::Priority::Demand);
  EXPECT_FALSE(store_->wait(read, first).has_value());
  harness_.memory_engine->release();
  EXPECT_TRUE(store_->wait(read, first).has_value());
  stall();
  store_->read(read, first, {0, sector}, harness_.buffer(sector), aio::Priority::Demand);
  EXPECT_FALSE(store_->wait(read, first).has_value());
  EXPECT_GE(seconds(), patience_s);
  harness_.memory_engine->release();
  EXPECT_TRUE(store_->close().has_value());
}

TEST_F(StalledDisk, AFetchMayBeGivenUpAndDroppedLater) {
  SerialExecutor executor;
  Residency residency({{.shard = first, .image = shard_bytes / sizeof(float)}}, *store_,
                      *harness_.device, executor);
  stall();
  ASSERT_TRUE(residency.start(0, aio::Priority::Demand).has_value());
  const auto acquired = residency.acquire(0);
  ASSERT_FALSE(acquired.has_value());
  EXPECT_EQ(acquired.error().code, ErrorCode::Timeout);
  const auto cleared = residency.clear();
  ASSERT_FALSE(cleared.has_value());
  EXPECT_EQ(cleared.error().code, ErrorCode::Timeout);
  EXPECT_LT(seconds(), too_many_deadlines_s);
  harness_.memory_engine->release();
  EXPECT_TRUE(residency.clear().has_value());
  EXPECT_EQ(harness_.device->statistics().bytes_in_use, 0u);
  ASSERT_TRUE(residency.start(0, aio::Priority::Demand).has_value());  // it works as before
  EXPECT_TRUE(residency.acquire(0).has_value());
  EXPECT_TRUE(residency.unpin(0).has_value());
  EXPECT_TRUE(residency.clear().has_value());
  EXPECT_TRUE(store_->close().has_value());
}

TEST_F(StalledDisk, AStagingItemFinishesLater) {
  auto ring = StagingRing::create(*store_, *harness_.host, 4 * sector, 2).value();
  stall();
  ring->at(0).read(first, {0, sector}, 0, aio::Priority::OptimizerRead);
  ring->at(0).write(ShardId{1}, {0, sector}, sector);
  ring->at(1).read(first, {sector, sector}, 0, aio::Priority::OptimizerRead);
  const auto finished = ring->finish();
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().code, ErrorCode::Timeout);
  EXPECT_FALSE(ring->at(0).idle());
  EXPECT_LT(seconds(), too_many_deadlines_s);
  harness_.memory_engine->release();
  EXPECT_TRUE(ring->finish().has_value());
  EXPECT_TRUE(ring->at(0).idle());
  ring.reset();
  EXPECT_TRUE(store_->close().has_value());
}

/// Lends one sector after the other, each once: more of them than a pool of these tests holds.
class Sectors final : public BufferOwner {
 public:
  explicit Sectors(std::size_t count)
      : size_(count * sector),
        data_(static_cast<std::byte*>(std::aligned_alloc(sector, size_)), &std::free) {}
  BufferLease lease() {
    ARTESIAN_CHECK(next_ + sector <= size_, next_, size_);
    ++lent_;
    return {data_.get() + std::exchange(next_, next_ + sector), sector, this};
  }
  void give_back(std::byte*, std::uint64_t) noexcept override { --lent_; }
  int lent() const { return lent_; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  std::size_t next_ = 0;
  std::atomic<int> lent_{0};
};

/// No answer before release(); from then on each takes longer than asking for the next transfer.
class SlowAnswers final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block&, std::int64_t result) noexcept override {
    released_.wait();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return result;
  }
  void release() { released_.count_down(); }

 private:
  std::latch released_{1};
};

TEST(InFlightLimit, MoreTransfersThanTheTableHoldsWaitForTheirTurn) {
  const test_support::TemporaryDirectory directory;
  SlowAnswers slow;
  const auto engine = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}, &slow).value();
  const auto pool = pinned::Pool::create({.bytes = 1 << 20, .lock = pinned::Lock::Never}).value();
  auto store = TierStore::open({.directories = {directory.path()}, .run_id = 1},
                               {{.name = "s", .bytes = sector, .block_bytes = sector}}, *pool,
                               *pool, *engine, system_files())
                   .value();
  Sectors sectors(2 * InFlightTable::transfers_max);
  std::deque<Transfer> reads(2 * InFlightTable::transfers_max);
  std::ptrdiff_t in_flight_max = 0;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (i == InFlightTable::transfers_max) slow.release();  // the table is full
    store->read(reads[i], first, {0, sector}, sectors.lease(), aio::Priority::Prefetch);
    if (i % 512 != 511) continue;
    const auto end = reads.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    in_flight_max = std::max(in_flight_max, std::count_if(reads.begin(), end, [](const auto& read) {
                               return read.in_flight();
                             }));
  }
  EXPECT_EQ(in_flight_max, static_cast<std::ptrdiff_t>(InFlightTable::transfers_max));
  for (auto& read : reads) {
    EXPECT_TRUE(store->wait(read, first).has_value());
    read.take_buffer().reset();
  }
  EXPECT_EQ(sectors.lent(), 0);
  EXPECT_TRUE(store->close().has_value());
}

// The disk hangs with the table full: no abort, and the same Timeout for all, after one deadline.
TEST(InFlightLimit, AFullTableOnAStalledDiskEndsInTimeouts) {
  Harness harness(Backend::Memory);
  auto store =
      harness
          .open({{.name = "s", .bytes = sector, .block_bytes = sector}}, Verify::Full, patience_s)
          .value();
  harness.memory_engine->hold();
  Sectors sectors(InFlightTable::transfers_max + 1);
  std::deque<Transfer> reads(InFlightTable::transfers_max + 1);
  for (auto& read : reads) {
    store->read(read, first, {0, sector}, sectors.lease(), aio::Priority::Prefetch);
  }
  const auto waited = store->wait(reads.back(), first);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code, ErrorCode::Timeout);
  EXPECT_NE(waited.error().message.find("and 4081 more"), std::string::npos)
      << waited.error().message;
  harness.memory_engine->release();
  EXPECT_TRUE(store->close().has_value());
}

}  // namespace
}  // namespace artesian::tiering
