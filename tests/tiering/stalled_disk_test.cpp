// Proves what a disk that stops answering costs: one deadline and a Timeout that names what hangs,
// without an abort. Late answers are accepted as usual. Files of a disk that hung while it was
// measured at the start are not touched. Transfers beyond the size of the table of those in flight
// wait for their turn.
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
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector = 4096;
constexpr double patience_s = 0.3;
// 32 transfers with a deadline each. A test takes one deadline; the rest is for a busy machine.
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

// A hung file system never answers, so its files stay open and locked.
class StalledAtTheStart : public testing::Test {
 protected:
  StalledAtTheStart() { harness_.memory_engine->hold(); }
  ~StalledAtTheStart() override { harness_.memory_engine->release(); }

  void expect_untouched(const std::vector<std::string>& directories) {
    for (const std::string& directory : directories) {
      const std::string file = directory + "/" + swap_file_name(run_id, 0);
      EXPECT_TRUE(harness_.files().exists(file)) << file;
      const auto second = open({.directories = {directory}, .run_id = run_id + 1}, sector);
      ASSERT_FALSE(second.has_value());
      EXPECT_EQ(second.error().code, ErrorCode::Busy) << second.error().to_string();
    }
  }
  Result<std::unique_ptr<TierStore>> open(const TierStoreOptions& options, std::uint64_t bytes) {
    return TierStore::open(options, {{.name = "s", .bytes = bytes, .block_bytes = sector}},
                           *harness_.device, *harness_.host, harness_.engine(), harness_.files());
  }
  static void expect_timeout(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::Timeout);
    EXPECT_NE(error.message.find("no answer from the disk within 0.3 s, measuring it: "),
              std::string::npos)
        << error.message;
    EXPECT_NE(error.file.find(swap_file_name(run_id, 0)), std::string::npos) << error.file;
  }

  static constexpr std::uint64_t run_id = 7;
  Harness harness_{Backend::Memory};
};

TEST_F(StalledAtTheStart, AProbeThatHangsLeavesTheFileAlone) {
  const std::string directory = harness_.directory();
  auto store =
      open({.directories = {directory}, .run_id = run_id, .wait_seconds = patience_s}, 8 << 20)
          .value();
  const auto probed = store->probe_disk(0, *harness_.staging);
  ASSERT_FALSE(probed.has_value());
  expect_timeout(probed.error());
  for (int turn = 0; turn < 2; ++turn) {
    const auto closed = store->close();
    ASSERT_FALSE(closed.has_value());
    expect_timeout(closed.error());
  }
  store.reset();
  expect_untouched({directory});
}

TEST_F(StalledAtTheStart, SoDoesOneOfSeveralPathsBeforeAnythingIsPlaced) {
  const std::vector<std::string> directories{harness_.directory() + "/a",
                                             harness_.directory() + "/b"};
  auto memory = pinned::Pool::create({.bytes = 32 << 20, .lock = pinned::Lock::Never}).value();
  std::swap(memory, harness_.host);  // measuring takes memory of this pool
  const auto opened = open({.directories = directories,
                            .volumes = {{0, 1}},
                            .run_id = run_id,
                            .wait_seconds = patience_s},
                           40 << 20);
  ASSERT_FALSE(opened.has_value());
  expect_timeout(opened.error());
  expect_untouched(directories);
}

/// Lends sectors one after the other, each once: more of them than a pool of these tests holds.
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

/// No answer before release(). Later each answer takes longer than the request for the next
/// transfer.
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

// The disk hangs while the table is full: all transfers end in the same Timeout after one deadline,
// without an abort.
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
