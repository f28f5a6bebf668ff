// Proves that a store with transfers in flight can be closed at any instant (row 12 of the
// reliability table): within its deadline, and with descriptors, threads, maps, locked memory and
// the directory as before. The instant is a random number of transfers and a random pause. 100
// instants for each engine, 1,000 with ARTESIAN_SOAK=1.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t block_bytes = 64 << 10;
constexpr std::uint64_t shard_bytes = 8 * block_bytes;
constexpr std::uint32_t shards = 4;

int instants() {
  return std::getenv("ARTESIAN_SOAK") != nullptr ? 1000 : 100;
}

/// Everything of one run: a pool, an engine, a store over a directory that exists before and after.
class OneRun {
 public:
  OneRun(Backend backend, const std::string& directory, FileSystem& files) {
    const aio::EngineOptions options{.block_size = 64 << 10, .queue_depth = 4, .threads = 2};
    auto engine = backend == Backend::Threads ? aio::make_threads(options, nullptr)
                                              : aio::make_io_uring(options, nullptr);
    if (!engine.has_value()) return;
    engine_ = std::move(engine).value();
    pool_ = pinned::Pool::create({.bytes = 16 << 20, .lock = pinned::Lock::Try}).value();
    const std::array<std::span<std::byte>, 1> ranges{pool_->range()};
    (void)engine_->register_memory(ranges);
    const TierStoreOptions store_options{.directories = {directory}, .run_id = 5};
    const ShardOptions shard{.name = "s", .bytes = shard_bytes, .block_bytes = block_bytes};
    store_ = TierStore::open(store_options, std::vector<ShardOptions>(shards, shard), *pool_,
                             *pool_, *engine_, files)
                 .value();
    for (std::uint32_t i = 0; i < shards; ++i) {
      for (std::uint64_t block = 0; block < shard_bytes / block_bytes; ++block) {
        store_->seal(ShardId{i}, block, pool_->range().data());
      }
    }
  }
  bool available() const { return store_ != nullptr; }

  /// Starts transfers, of shards that have none in flight.
  void work(std::mt19937_64& random) {
    const std::uint64_t count = random() % 24;
    for (std::uint64_t i = 0; i < count; ++i) {
      const ShardId id{static_cast<std::uint32_t>(random() % shards)};
      const bool writes = static_cast<std::uint32_t>(id) % 2 == 0;
      if (writes && store_->writing(id)) continue;
      auto buffer = pool_->lease(shard_bytes);
      if (!buffer.has_value()) break;
      auto& completion = completions_.emplace_back();
      if (writes) {
        store_->write(completion, id, {0, shard_bytes}, std::move(buffer).value(),
                      aio::Priority::WriteBack);
      } else {
        store_->read(completion, id, {0, shard_bytes}, std::move(buffer).value(),
                     aio::Priority::Prefetch);
      }
    }
    if (count != 0 && random() % 4 == 0) {
      EXPECT_TRUE(store_->wait(completions_.front(), ShardId{0}).has_value());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  }

  void close() {
    const auto start = std::chrono::steady_clock::now();
    const auto closed = store_->close();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_TRUE(closed.has_value()) << closed.error().to_string();
    seconds_max = std::max(seconds_max, seconds.count());
    for (const auto& completion : completions_) EXPECT_TRUE(completion.ready());
    completions_.clear();
    EXPECT_EQ(pool_->statistics().bytes_in_use, 0u);
  }

  static inline double seconds_max = 0.0;

 private:
  std::unique_ptr<aio::Engine> engine_;
  std::unique_ptr<pinned::Pool> pool_;
  std::unique_ptr<TierStore> store_;
  std::deque<Transfer> completions_;
};

class Shutdown : public testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(Engines, Shutdown, testing::Values(Backend::Threads, Backend::IoUring),
                         backend_name);

TEST_P(Shutdown, AtAnyInstantLeavesEverythingAsItWas) {
  const test_support::TemporaryDirectory directory;
  std::mt19937_64 random(test_support::test_seed(12));
  const auto once = [&] {
    OneRun run(GetParam(), directory.path(), system_files());
    if (!run.available()) return false;
    run.work(random);
    run.close();
    return true;
  };
  for (int i = 0; i < 20; ++i) {  // the C library keeps some arenas for later threads
    if (!once()) GTEST_SKIP() << "the kernel refuses this engine";
  }
  const auto before = test_support::Baseline::now();
  const std::size_t maps = test_support::map_count();
  const std::size_t locked = test_support::status_kib("VmLck");
  for (int i = 0; i < instants() && !HasFailure(); ++i) {
    once();
    EXPECT_LE(test_support::Baseline::settled(before), before) << "instant " << i;
    EXPECT_EQ(test_support::status_kib("VmLck"), locked) << "instant " << i;
    EXPECT_TRUE(system_files().list(directory.path()).value().empty()) << "instant " << i;
  }
  EXPECT_LE(test_support::map_count(), maps + test_support::maps_of_threads);
  std::printf("%d instants, the slowest close took %.3f s\n", instants(), OneRun::seconds_max);
  EXPECT_LT(OneRun::seconds_max, 30.0);  // 2 s on an idle machine; a hang is what this catches
}

}  // namespace
}  // namespace artesian::tiering
