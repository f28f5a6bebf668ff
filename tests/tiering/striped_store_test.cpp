// A store whose shards are divided over several paths: bytes are read as written for any division,
// failures name their path, a slow disk delays no other, and nothing is left.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <latch>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "aio/path_engines.h"
#include "tests/support/process.h"
#include "tests/tiering/tier_store_harness.h"
#include "tiering/superblock.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector = 4096;
constexpr ShardId first{0};

/// No answer for files of the second path before release().
class HeldAnswers final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block& block, std::int64_t result) noexcept override {
    if (block.request().file->path().find("/path1/") != std::string::npos) released_.wait();
    return result;
  }
  void release() { released_.count_down(); }

 private:
  std::latch released_{1};
};

/// Directories of one file system, each with an engine of its own.
class Paths {
 public:
  explicit Paths(std::uint32_t count, std::vector<aio::FaultSeam*> faults = {},
                 aio::EngineKind kind = aio::EngineKind::Threads) {
    faults.resize(count, nullptr);
    for (std::uint32_t path = 0; path < count; ++path) {
      directories.push_back(directory_.file("path" + std::to_string(path)));
    }
    std::uint32_t made = 0;
    auto engines = aio::make_path_engines(count, [&]() -> Result<std::unique_ptr<aio::Engine>> {
      const aio::EngineOptions options{.block_size = 64 << 10, .queue_depth = 2};
      aio::FaultSeam* const seam = faults[made++];
      return kind == aio::EngineKind::Threads ? aio::make_threads(options, seam)
                                              : aio::make_io_uring(options, seam);
    });
    if (engines.has_value()) engine = std::move(engines).value();
  }
  ~Paths() {
    EXPECT_EQ(system_files().list(directory_.path()).value(), std::vector<std::string>());
  }
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  /// All paths are one volume.
  TierStoreOptions options() const {
    std::vector<std::uint32_t> volume;
    for (std::uint32_t path = 0; path < directories.size(); ++path) volume.push_back(path);
    return {.directories = directories,
            .volumes = {volume},
            .stripe_bytes = 64 << 10,
            .run_id = 7,
            .wait_seconds = 20};
  }
  Result<std::unique_ptr<TierStore>> open(const TierStoreOptions& options,
                                          std::vector<ShardOptions> shards) {
    return TierStore::open(options, std::move(shards), *pool, *pool, *engine, system_files());
  }
  std::string swap_path(std::uint32_t path) const {
    return directories[path] + "/" + swap_file_name(7, 0);
  }

 private:
  test_support::TemporaryDirectory directory_;

 public:
  std::vector<std::string> directories;
  std::unique_ptr<pinned::Pool> pool =
      pinned::Pool::create({.bytes = 64 << 20, .lock = pinned::Lock::Never}).value();
  std::unique_ptr<aio::Engine> engine;
};

ShardOptions shard_of(std::uint64_t bytes, std::uint64_t block_bytes, std::uint32_t volume = 0) {
  return {.name = "s", .bytes = bytes, .block_bytes = block_bytes, .volume = volume};
}

/// Fills [offset, offset + length) of a shard, so that any two words of a test differ.
void fill_range(std::byte* data, ShardId id, ByteRange range, std::uint64_t version) {
  for (std::uint64_t at = 0; at < range.length; at += 8) {
    const std::uint64_t word =
        random_word(version, static_cast<std::uint64_t>(id), (range.offset + at) / 8);
    std::memcpy(data + at, &word, 8);
  }
}

Result<void> write(Paths& paths, TierStore& store, ShardId id, ByteRange range,
                   std::uint64_t version = 1) {
  BufferLease buffer = paths.pool->lease(range.length).value();
  fill_range(buffer.data(), id, range, version);
  return write_buffer(store, id, range, std::move(buffer));
}

/// Returns the error of the transfer, or of the first block that differs from what was written.
Result<BufferLease> read(Paths& paths, TierStore& store, ShardId id, ByteRange range) {
  ARTESIAN_TRY(buffer, read_buffer(store, id, range, paths.pool->lease(range.length).value()));
  const std::uint64_t block_bytes = store.shard(id).block_bytes;
  if (range.offset % block_bytes != 0) return buffer;
  for (std::uint64_t done = 0; done < range.length; done += block_bytes) {
    const std::uint64_t block = (range.offset + done) / block_bytes;
    if (done + store.block_length(id, block) > range.length) break;
    ARTESIAN_TRY_VOID(store.verify(id, block, buffer.data() + done));
  }
  return buffer;
}

class StripedStore : public testing::TestWithParam<aio::EngineKind> {};

INSTANTIATE_TEST_SUITE_P(Engines, StripedStore,
                         testing::Values(aio::EngineKind::Threads, aio::EngineKind::IoUring),
                         [](const auto& given) { return aio::engine_kind_name(given.param); });

/// Random shards, ranges, paths and weights: reads return what was written last.
TEST_P(StripedStore, BytesComeBackWhateverTheDivision) {
  std::mt19937_64 random(test_support::test_seed(42));
  for (std::uint32_t count = 1; count <= 4; ++count) {
    Paths paths(count, {}, GetParam());
    if (!paths.engine) GTEST_SKIP() << "the kernel refuses this engine";
    TierStoreOptions options = paths.options();
    for (std::uint32_t path = 0; path < count; ++path) {
      const double speed = static_cast<double>(1 + random() % 8) * 1e9;
      options.disks.push_back({.speed = {speed, speed}, .device = path});
    }
    options.stripe_bytes = sector * (1 + random() % 20);
    std::vector<ShardOptions> shards;
    for (int shard = 0; shard < 8; ++shard) {
      shards.push_back(shard_of(sector * (1 + random() % 200), sector * (1 + random() % 9)));
    }
    auto store = paths.open(options, shards).value();
    std::vector<std::uint64_t> versions(shards.size(), 0);
    for (int turn = 0; turn < 60; ++turn) {
      const ShardId id{static_cast<std::uint32_t>(random() % shards.size())};
      const std::uint64_t bytes = store->shard(id).bytes;
      auto& version = versions[static_cast<std::size_t>(id)];
      if (version == 0 || random() % 2 == 0) {
        const auto written = write(paths, *store, id, {0, bytes}, ++version);
        ASSERT_TRUE(written.has_value()) << written.error().to_string();
        continue;
      }
      const std::uint64_t offset = random() % (bytes / sector) * sector;
      const std::uint64_t length = (1 + random() % ((bytes - offset) / sector)) * sector;
      const auto buffer = read(paths, *store, id, {offset, length});
      ASSERT_TRUE(buffer.has_value()) << buffer.error().to_string();
      std::vector<std::byte> expected(length);
      fill_range(expected.data(), id, {offset, length}, version);
      ASSERT_EQ(std::memcmp(buffer->data(), expected.data(), length), 0) << offset << " " << length;
    }
    EXPECT_TRUE(store->close().has_value());
  }
}

TEST_P(StripedStore, CountsBytesOfEachPathByItsShare) {
  Paths paths(2, {}, GetParam());
  if (!paths.engine) GTEST_SKIP() << "the kernel refuses this engine";
  auto store = paths.open(paths.options(), {shard_of(512 << 10, sector)}).value();
  EXPECT_EQ(store->shares(0)[0].share, 0.5);
  EXPECT_EQ(store->shares(0)[1].share, 0.5);
  ASSERT_TRUE(write(paths, *store, first, {0, 512 << 10}).has_value());
  ASSERT_TRUE(read(paths, *store, first, {0, 64 << 10}).has_value());
  const TierStoreStatistics statistics = store->statistics();
  EXPECT_EQ(statistics.bytes_written, 512u << 10);
  EXPECT_EQ(statistics.bytes_read, 64u << 10);
  const auto& through = store->path_bytes();
  ASSERT_EQ(through.size(), 2u);
  EXPECT_EQ(through[0].written, 256u << 10);
  EXPECT_EQ(through[1].written, 256u << 10);
  EXPECT_EQ(through[0].read, 64u << 10);
  EXPECT_EQ(through[1].read, 0u);
  EXPECT_EQ(paths.engine->statistics().bytes_written, 512u << 10);
  EXPECT_EQ(paths.engine->for_path(1).statistics().bytes_written, 256u << 10);
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, DisksGetBytesByTheirSpeed) {
  Paths paths(2);
  TierStoreOptions options = paths.options();
  options.disks = {{.speed = {1e9, 1e9}, .device = 1}, {.speed = {3e9, 3e9}, .device = 2}};
  auto store = paths.open(options, {shard_of(4 << 20, 64 << 10)}).value();
  const auto shares = store->shares(0);
  EXPECT_NEAR(shares[0].share, 0.25, 0.01);
  EXPECT_DOUBLE_EQ(shares[0].share + shares[1].share, 1.0);
  EXPECT_EQ(shares[1].speed.write_bytes_per_s, 3e9);
  EXPECT_NEAR(store->probe_disk(0, *paths.pool).value().read_bytes_per_s, 4e9, 0.1e9);
  ASSERT_TRUE(write(paths, *store, first, {0, 4 << 20}).has_value());
  EXPECT_NEAR(static_cast<double>(store->path_bytes()[0].written), 1 << 20, 128 << 10);
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, MeasuresDisksThatNobodyKnows) {
  Paths paths(2);
  auto store = paths.open(paths.options(), {shard_of(34 << 20, 1 << 20)}).value();
  const auto speed = store->probe_disk(0, *paths.pool);
  ASSERT_TRUE(speed.has_value()) << speed.error().to_string();
  EXPECT_GT(speed->read_bytes_per_s, 0);
  EXPECT_GT(speed->write_bytes_per_s, 0);
  for (const PathShare& path : store->shares(0)) {
    EXPECT_EQ(path.share, 0.5);  // they share the disk
    EXPECT_GT(path.speed.write_bytes_per_s, 0);
  }
  EXPECT_EQ(store->statistics().bytes_written, 0u);
  EXPECT_EQ(paths.pool->statistics().bytes_in_use, 0u);
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, AFlippedByteNamesItsFileAndPlace) {
  Paths paths(2);
  auto store = paths.open(paths.options(), {shard_of(256 << 10, sector)}).value();
  ASSERT_TRUE(write(paths, *store, first, {0, 256 << 10}).has_value());
  {
    std::fstream file(paths.swap_path(1), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(superblock_region_size + sector + 5));
    file.put('\x55').put('\x55');
  }
  EXPECT_TRUE(read(paths, *store, first, {0, 64 << 10}).has_value());
  const auto bad = read(paths, *store, first, {0, 256 << 10});
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::Corrupt);
  EXPECT_EQ(bad.error().file, paths.swap_path(1));
  EXPECT_EQ(bad.error().offset, superblock_region_size + sector);
  EXPECT_NE(bad.error().message.find("block 17"), std::string::npos) << bad.error().message;
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, AnErrorOnOnePathNamesThatPathsFile) {
  for (const auto operation : {aio::Operation::Read, aio::Operation::Write}) {
    BadSector faults;
    faults.operation = operation;
    faults.offset = superblock_region_size + sector;
    Paths paths(2, {nullptr, &faults});
    auto store = paths.open(paths.options(), {shard_of(256 << 10, sector)}).value();
    ASSERT_TRUE(write(paths, *store, first, {0, 256 << 10}).has_value());
    faults.system_error = EIO;
    const Result<void> moved =
        operation == aio::Operation::Write
            ? write(paths, *store, first, {0, 256 << 10}, 2)
            : Result<void>(read(paths, *store, first, {0, 256 << 10}).error());
    ASSERT_FALSE(moved.has_value());
    EXPECT_EQ(moved.error().code, ErrorCode::Io);
    EXPECT_EQ(moved.error().file, paths.swap_path(1));
    EXPECT_NE(moved.error().message.find("shard s"), std::string::npos);
    faults.system_error = 0;
    EXPECT_TRUE(read(paths, *store, first, {0, 64 << 10}).has_value());  // the other path's bytes
    EXPECT_EQ(paths.pool->statistics().bytes_in_use, 0u);
    EXPECT_TRUE(store->close().has_value());
  }
}

TEST(SwapOverPaths, ASlowPathHoldsUpNoOther) {
  HeldAnswers held;
  Paths paths(2, {&held, &held});
  TierStoreOptions options = paths.options();
  options.volumes.push_back({0});
  auto store =
      paths.open(options, {shard_of(2 << 20, sector), shard_of(64 << 10, sector, 1)}).value();
  // Far more blocks for the slow path than the kernel has slots.
  Transfer slow;
  BufferLease buffer = paths.pool->lease(2 << 20).value();
  for (std::uint64_t block = 0; block < 512; ++block) {
    store->seal(first, block, buffer.data() + block * sector);
  }
  store->write(slow, first, {0, 2 << 20}, std::move(buffer), aio::Priority::Demand);
  EXPECT_TRUE(write(paths, *store, ShardId{1}, {0, 64 << 10}).has_value());
  EXPECT_TRUE(read(paths, *store, ShardId{1}, {0, 64 << 10}).has_value());
  EXPECT_TRUE(slow.in_flight());
  EXPECT_FALSE(slow.ready());
  held.release();
  EXPECT_TRUE(store->wait(slow, first).has_value());
  slow.take_buffer().reset();
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, ADiskThatHangsIsNamedAndTheTransferMayBeAwaitedAgain) {
  HeldAnswers held;
  Paths paths(2, {nullptr, &held});
  TierStoreOptions options = paths.options();
  options.wait_seconds = 0.05;
  auto store = paths.open(options, {shard_of(256 << 10, sector)}).value();
  Transfer transfer;
  store->read(transfer, first, {0, 256 << 10}, paths.pool->lease(256 << 10).value(),
              aio::Priority::Demand);
  const auto waited = store->wait(transfer, first);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code, ErrorCode::Timeout);
  EXPECT_NE(waited.error().message.find(paths.swap_path(1)), std::string::npos);
  EXPECT_FALSE(transfer.ready());
  EXPECT_EQ(store->close().error().code, ErrorCode::Timeout);
  held.release();
  while (!store->wait(transfer, first).has_value()) continue;  // each within its deadline
  transfer.take_buffer().reset();
  EXPECT_EQ(paths.pool->statistics().bytes_in_use, 0u);
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, AnErrorWhileMeasuringNamesThePathAndNothingStays) {
  BadSector faults;
  faults.operation = aio::Operation::Write;
  faults.offset = superblock_region_size;
  faults.system_error = EIO;
  Paths paths(2, {nullptr, &faults});
  const auto refused = paths.open(paths.options(), {shard_of(40 << 20, 1 << 20)});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Io);
  EXPECT_EQ(refused.error().file, paths.swap_path(1));
  EXPECT_EQ(paths.pool->statistics().bytes_in_use, 0u);
}

TEST(SwapOverPaths, WithoutMemoryToMeasureWithAllPathsAreEqual) {
  Paths paths(2);
  const BufferLease all = paths.pool->lease(64 << 20).value();
  auto store = paths.open(paths.options(), {shard_of(40 << 20, 1 << 20)}).value();
  EXPECT_EQ(store->shares(0)[0].share, 0.5);
  EXPECT_EQ(store->shares(0)[0].speed.read_bytes_per_s, 0);
  EXPECT_TRUE(store->close().has_value());
}

TEST(SwapOverPaths, APathInUseIsNamedAndTheOthersAreFreeAgain) {
  Paths paths(3);
  TierStoreOptions others = paths.options();
  others.directories = {paths.directories[2]};
  others.volumes = {{0}};
  auto holder = paths.open(others, {shard_of(sector, sector)}).value();
  const auto refused = paths.open(paths.options(), {shard_of(256 << 10, sector)});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Busy);
  EXPECT_TRUE(refused.error().file.starts_with(paths.directories[2]))
      << refused.error().to_string();
  EXPECT_FALSE(system_files().exists(paths.directories[0]));
  EXPECT_FALSE(system_files().exists(paths.directories[1]));
  EXPECT_TRUE(holder->close().has_value());
  auto store = paths.open(paths.options(), {shard_of(256 << 10, sector)});
  ASSERT_TRUE(store.has_value());
  EXPECT_TRUE((*store)->close().has_value());
}

TEST(SwapOverPaths, StaleFilesAreReclaimedOnEveryPath) {
  Paths paths(2);
  std::vector<std::string> stale;
  for (const std::string& directory : paths.directories) {
    std::filesystem::create_directory(directory);
    stale.push_back(directory + "/" + swap_file_name(1234, 0));
    std::ofstream(stale.back()) << "of a run that was killed";
  }
  auto store = paths.open(paths.options(), {shard_of(256 << 10, sector)}).value();
  for (const std::string& file : stale) EXPECT_FALSE(system_files().exists(file)) << file;
  EXPECT_TRUE(store->close().has_value());
  for (const std::string& directory : paths.directories) {  // ours, so they stay, and are empty
    EXPECT_TRUE(std::filesystem::remove(directory));
  }
}

TEST(SwapOverPaths, TooFewDescriptorsNameThePath) {
  Paths paths(24);
  const std::size_t before = system_files().list("/proc/self/fd").value().size();
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few{.rlim_cur = before + 20, .rlim_max = usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto refused = paths.open(paths.options(), {shard_of(4 << 20, sector)});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().system_error, EMFILE);
  EXPECT_NE(refused.error().to_string().find("/path"), std::string::npos);
  EXPECT_NE(refused.error().message.find("ulimit -n"), std::string::npos)
      << refused.error().to_string();
  EXPECT_EQ(system_files().list("/proc/self/fd").value().size(), before);
}

/// Two disks in memory, each with its own capacity: files below "/disk/b" are on the second.
class TwoDisks final : public FileSystem {
 public:
  TwoDisks(std::uint64_t bytes_first, std::uint64_t bytes_second)
      : one_(bytes_first), other_(bytes_second) {}
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    return disk(path).open(path, options);
  }
  Result<void> make_directory(const std::string& path) noexcept override {
    return disk(path).make_directory(path);
  }
  Result<void> remove(const std::string& path) noexcept override { return disk(path).remove(path); }
  Result<void> remove_directory(const std::string& path) noexcept override {
    return disk(path).remove_directory(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) noexcept override {
    return disk(from).rename(from, to);
  }
  Result<void> sync_directory(const std::string& path) noexcept override {
    return disk(path).sync_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) noexcept override {
    return disk(path).list(path);
  }
  Result<std::uint64_t> free_bytes(const std::string& path) noexcept override {
    return disk(path).free_bytes(path);
  }
  bool exists(const std::string& path) noexcept override { return disk(path).exists(path); }
  Result<FileStatus> status(const std::string& path) noexcept override {
    return disk(path).status(path);
  }

 private:
  FileSystem& disk(const std::string& path) { return path.starts_with("/disk/b") ? other_ : one_; }
  test_support::MemoryFiles one_;
  test_support::MemoryFiles other_;
};

TEST(SwapOverPaths, APathWithTooLittleSpaceIsNamedWithTheBytes) {
  const auto pool = pinned::Pool::create({.bytes = 32 << 20, .lock = pinned::Lock::Never}).value();
  test_support::MemoryEngine engine({.block_size = 64 << 10, .queue_depth = 2});
  const TierStoreOptions options{
      .directories = {"/disk/a", "/disk/b"}, .volumes = {{0, 1}}, .run_id = 7};
  constexpr std::uint64_t room = 3 << 20;
  // Less and more than is measured before files are placed: the message is the same.
  for (const std::uint64_t bytes : {std::uint64_t{20} << 20, std::uint64_t{80} << 20}) {
    TwoDisks files(200 << 20, room);
    const auto refused =
        TierStore::open(options, {shard_of(bytes, 1 << 20)}, *pool, *pool, engine, files);
    ASSERT_FALSE(refused.has_value());
    const Error& error = refused.error();
    EXPECT_EQ(error.code, ErrorCode::NoSpace);
    EXPECT_EQ(error.file, "/disk/b");
    const std::string needed = std::to_string(bytes / 2 + superblock_region_size) + " bytes";
    EXPECT_NE(error.message.find(needed), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("free are 3.00 MiB ("), std::string::npos) << error.message;
    for (const char* directory : {"/disk/a", "/disk/b"}) EXPECT_FALSE(files.exists(directory));
    EXPECT_EQ(files.free_bytes("/disk/a").value(), std::uint64_t{200} << 20);
    EXPECT_EQ(files.free_bytes("/disk/b").value(), room);
  }
}

TEST(SwapOverPaths, ADiskThatHangsWhileItIsMeasuredIsATimeout) {
  const auto pool = pinned::Pool::create({.bytes = 32 << 20, .lock = pinned::Lock::Never}).value();
  test_support::MemoryEngine engine({.block_size = 64 << 10, .queue_depth = 2});
  engine.hold();
  TwoDisks files(200 << 20, 200 << 20);
  const TierStoreOptions options{.directories = {"/disk/a", "/disk/b"},
                                 .volumes = {{0, 1}},
                                 .run_id = 7,
                                 .wait_seconds = 0.05};
  const auto refused =
      TierStore::open(options, {shard_of(80 << 20, 1 << 20)}, *pool, *pool, engine, files);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Timeout);
  EXPECT_EQ(pool->statistics().bytes_in_use, 0u);  // unsent buffers were returned
}

}  // namespace
}  // namespace artesian::tiering
