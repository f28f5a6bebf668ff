// Proves that the disk probe measures within its range, keeps no memory leased, works with little
// memory, and reports failures. Speeds and times are printed, not checked: disk and machine are
// shared.
#include "tiering/disk/probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>

#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

class DiskProbeTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!harness_.available()) GTEST_SKIP() << "the kernel refuses this engine";
  }
  std::unique_ptr<TierStore> open(std::uint64_t bytes) {
    return harness_.must_open({{.name = "s", .bytes = bytes, .block_bytes = 1 << 20}});
  }
  Harness harness_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Engines, DiskProbeTest,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::IoUring),
                         backend_name);

TEST_P(DiskProbeTest, MeasuresBothDirections) {
  auto store = open(80 << 20);
  const auto start = std::chrono::steady_clock::now();
  const auto speed = store->probe_disk(0, *harness_.staging);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(speed.has_value()) << speed.error().to_string();
  EXPECT_GT(speed->read_bytes_per_s, 0.0);
  EXPECT_GT(speed->write_bytes_per_s, 0.0);
  std::printf("read %.2f GB/s, write %.2f GB/s in %.3f s\n", speed->read_bytes_per_s * 1e-9,
              speed->write_bytes_per_s * 1e-9, elapsed.count());
  EXPECT_EQ(harness_.staging->statistics().bytes_in_use, 0u);
  EXPECT_LE(harness_.staging->statistics().bytes_in_use_peak, 16u << 20);
  EXPECT_LE(harness_.engine().statistics().bytes_read, 64u << 20);
  EXPECT_EQ(store->statistics().bytes_written, 0u);  // not the run's
  const auto verified = store->verify(ShardId{0}, 0, harness_.staging->range().data());
  ASSERT_FALSE(verified.has_value());  // bytes that the probe wrote count as never written
  EXPECT_EQ(verified.error().code, ErrorCode::Corrupt);
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(DiskProbeTest, WorksOnSmallFilesWithLittleMemory) {
  for (const std::uint64_t bytes : {4096ul, 3 * 4096ul, 5ul << 20}) {
    for (const std::uint64_t memory : {4096ul, 6 * 4096ul, 3ul << 20}) {
      auto pool =
          pinned::Pool::create({.bytes = memory, .lock = pinned::Lock::Never, .name = "p"}).value();
      auto store = open(bytes);
      const auto speed = store->probe_disk(0, *pool);
      ASSERT_TRUE(speed.has_value()) << speed.error().to_string();
      EXPECT_GT(speed->read_bytes_per_s, 0);
      EXPECT_TRUE(store->close().has_value());
    }
  }
}

TEST_P(DiskProbeTest, MovesItsRangeOnceEachWayInTime) {
  std::unique_ptr<File> file =
      harness_.files().open(harness_.directory() + "/f", {.create = Create::Exclusive}).value();
  const Extent range{.offset = 4096, .length = 8 << 20};
  ASSERT_TRUE(file->allocate(range.offset + range.length).has_value());
  const auto speed =
      probe_disk(*file, range, harness_.engine(), *harness_.staging, {.seconds = 3600}, Deadline{});
  ASSERT_TRUE(speed.has_value()) << speed.error().to_string();
  EXPECT_EQ(harness_.engine().statistics().bytes_read, range.length);
  EXPECT_EQ(harness_.engine().statistics().bytes_written, 2 * range.length);
}

TEST_P(DiskProbeTest, NeverLeavesItsRange) {
  std::unique_ptr<File> file =
      harness_.files().open(harness_.directory() + "/f", {.create = Create::Exclusive}).value();
  std::vector<std::byte> pattern(64 << 10);
  fill(pattern.data(), pattern.size(), 5);
  ASSERT_TRUE(file->write_at(pattern.data(), pattern.size(), 0).has_value());
  const Extent range{.offset = 8192, .length = 40960};
  ASSERT_TRUE(
      probe_disk(*file, range, harness_.engine(), *harness_.staging, {}, Deadline{}).has_value());
  std::vector<std::byte> after(64 << 10);
  ASSERT_TRUE(file->read_at(after.data(), after.size(), 0).has_value());
  EXPECT_EQ(std::memcmp(after.data(), pattern.data(), 8192), 0);
  EXPECT_NE(std::memcmp(after.data() + 8192, pattern.data() + 8192, 40960), 0);
  EXPECT_EQ(std::memcmp(after.data() + 49152, pattern.data() + 49152, after.size() - 49152), 0);
}

TEST_P(DiskProbeTest, ReportsFailures) {
  auto store = open(8 << 20);
  const auto all = harness_.staging->lease(harness_.staging->range().size());
  const auto no_memory = store->probe_disk(0, *harness_.staging);
  ASSERT_FALSE(no_memory.has_value());
  EXPECT_EQ(no_memory.error().code, ErrorCode::Exhausted);
  harness_.faults.operation = aio::Operation::Read;
  harness_.faults.offset = 1 << 20;
  harness_.faults.system_error = EIO;
  const auto bad = store->probe_disk(0, *harness_.host);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::Io);
  EXPECT_EQ(bad.error().file, harness_.swap_path());
  EXPECT_EQ(harness_.host->statistics().bytes_in_use, 0u);
  EXPECT_TRUE(store->close().has_value());
}

TEST(DiskProbe, GivesUpAtTheDeadline) {
  Harness harness(Backend::Memory);
  auto store =
      harness.open({{.name = "s", .bytes = 8 << 20, .block_bytes = 1 << 20}}, Verify::Full, 0.01)
          .value();
  harness.memory_engine->hold();
  const auto late = store->probe_disk(0, *harness.staging);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::Timeout);
  EXPECT_EQ(harness.staging->statistics().bytes_in_use,
            0u);  // cancelled, and all buffers were returned
  harness.memory_engine->release();
  EXPECT_EQ(store->close().error().code, ErrorCode::Timeout);  // see stalled_disk_test.cpp
}

/// No answer before release().
class NoAnswers final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block&, std::int64_t result) noexcept override {
    asked_ = true;
    released_.wait();
    return result;
  }
  void release() { released_.count_down(); }
  bool asked() const { return asked_; }

 private:
  std::atomic<bool> asked_ = false;
  std::latch released_{1};
};

// If the kernel holds blocks of the probe when its deadline passes, only their buffer is lost. Pool
// and engine may end as always, and the file after them.
TEST(DiskProbe, LosesNothingButWhatTheKernelHasOnADiskThatHangs) {
  const test_support::TemporaryDirectory directory;
  constexpr std::uint64_t piece = 2 << 20;
  NoAnswers hung;
  auto pool = pinned::Pool::create({.bytes = 32 << 20, .lock = pinned::Lock::Never}).value();
  auto engine = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}, &hung).value();
  auto file = system_files().open(directory.file("f"), {.create = Create::Exclusive}).value();
  const Extent range{.offset = 4096, .length = 4 * piece};
  ASSERT_TRUE(file->allocate(range.offset + range.length).has_value());
  const auto late = probe_disk(*file, range, *engine, *pool, {}, Deadline::after_seconds(0.3));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::Timeout);
  // The four blocks that the kernel may hold are of the first piece, unless all answers came too
  // late.
  const std::uint64_t lost = pool->statistics().bytes_in_use;
  EXPECT_TRUE(lost == piece || (lost == 0 && !hung.asked())) << lost;
  EXPECT_TRUE(engine->drain(Deadline::after_seconds(0)).has_value());
  hung.release();
  engine.reset();
  file.reset();
  pool.reset();
}

TEST(DiskProbe, APathThatNoShardUsesHasNoSpeed) {
  Harness harness(Backend::Memory);
  auto store =
      harness.must_open({{.name = "h", .home = Tier::Host, .bytes = 4096, .block_bytes = 4096}});
  EXPECT_EQ(store->probe_disk(0, *harness.staging).value().read_bytes_per_s, 0);
  EXPECT_TRUE(store->close().has_value());
}

}  // namespace
}  // namespace artesian::tiering
