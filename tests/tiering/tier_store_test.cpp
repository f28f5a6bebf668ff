// Proves that a TierStore returns what it was given, on every engine; that homes do not overlap and
// budgets are hard; that failures name shard, file and offset; that bytes are counted exactly; and
// that nothing is left. tests/tiering/corruption_test damages the stored bytes.
#include "tiering/tier_store.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector = 4096;
constexpr ShardId first{0};

ShardOptions nvme_shard(std::string name, std::uint64_t bytes, std::uint64_t block_bytes) {
  return {.name = std::move(name), .home = Tier::Nvme, .bytes = bytes, .block_bytes = block_bytes};
}

class TierStoreTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!harness_.available()) GTEST_SKIP() << "the kernel refuses this engine";
  }
  Harness harness_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Engines, TierStoreTest,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::IoUring,
                                         Backend::Simulated),
                         backend_name);

TEST_P(TierStoreTest, EveryByteComesBack) {
  const std::vector<ShardOptions> shards = {
      nvme_shard("small", sector, sector), nvme_shard("odd", 37 * sector, 4 * sector),
      nvme_shard("large", 5 << 20, 2 << 20), nvme_shard("short", 3 * sector, 1 << 20)};
  auto store = harness_.must_open(shards);
  std::vector<std::byte> expected(5 << 20);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < shards.size(); ++i) {
      const std::uint64_t stream = i + 10u * static_cast<unsigned>(round);
      const auto written = write_range(harness_, *store, ShardId{i}, {0, shards[i].bytes}, stream);
      ASSERT_TRUE(written.has_value());
    }
    for (std::uint32_t i = 0; i < shards.size(); ++i) {
      fill(expected.data(), shards[i].bytes, i + 10u * static_cast<unsigned>(round));
      auto read = read_range(harness_, *store, ShardId{i}, {0, shards[i].bytes});
      ASSERT_TRUE(read.has_value());
      EXPECT_EQ(std::memcmp(read->data(), expected.data(), shards[i].bytes), 0) << i;
      const std::uint64_t blocks =
          (shards[i].bytes + shards[i].block_bytes - 1) / shards[i].block_bytes;
      for (std::uint64_t block = 0; block < blocks; ++block) {
        EXPECT_TRUE(store->verify(ShardId{i}, block, read->data() + block * shards[i].block_bytes)
                        .has_value());
      }
    }
  }
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, RandomRangesEqualAModelInMemory) {
  constexpr std::uint64_t block = 2 * sector;
  constexpr std::uint64_t bytes = 64 * block + sector;  // the last block is short
  std::mt19937_64 random(test_support::test_seed(11));
  auto store = harness_.must_open(
      {nvme_shard("other", 7 * sector, sector), nvme_shard("shard", bytes, block)});
  const ShardId id{1};
  std::vector<std::byte> model(bytes);
  fill(model.data(), bytes, 0);
  ASSERT_TRUE(write_range(harness_, *store, id, {0, bytes}, 0).has_value());
  for (std::uint64_t step = 1; step <= 300; ++step) {
    if (random() % 2 == 0) {
      const std::uint64_t begin = random() % 65;
      const std::uint64_t end = begin + 1 + random() % (65 - begin);
      const ByteRange range{begin * block, std::min(end * block, bytes) - begin * block};
      ASSERT_TRUE(write_range(harness_, *store, id, range, step).has_value());
      fill(model.data() + range.offset, range.length, step);
    } else {  // reads need not be of whole blocks
      const std::uint64_t begin = random() % (bytes / sector);
      const std::uint64_t count = 1 + random() % (bytes / sector - begin);
      auto read = read_range(harness_, *store, id, {begin * sector, count * sector});
      ASSERT_TRUE(read.has_value());
      ASSERT_EQ(std::memcmp(read->data(), model.data() + begin * sector, count * sector), 0);
    }
  }
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, ManyTransfersInFlightAndWritingIsExactAfterWait) {
  constexpr std::uint32_t shards = 8;
  std::vector<ShardOptions> options(shards, nvme_shard("s", 32 * sector, sector));
  auto store = harness_.must_open(options);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::unique_ptr<Transfer>> completions;
    for (std::uint32_t i = 0; i < shards; ++i) {
      BufferLease buffer = harness_.buffer(32 * sector);
      for (std::uint64_t block = 0; block < 32; ++block) {
        store->seal(ShardId{i}, block, buffer.data() + block * sector);
      }
      completions.push_back(std::make_unique<Transfer>());
      store->write(*completions[i], ShardId{i}, {0, 32 * sector}, std::move(buffer),
                   aio::Priority::WriteBack);
    }
    for (std::uint32_t i = 0; i < shards; ++i) {
      ASSERT_TRUE(store->wait(*completions[i], ShardId{i}).has_value());
      ASSERT_FALSE(store->writing(ShardId{i}));
      completions[i].reset();  // may go at once
    }
  }
  EXPECT_TRUE(store->close().has_value());
  EXPECT_EQ(harness_.staging->statistics().bytes_in_use, 0u);
}

TEST_P(TierStoreTest, ABlockThatWasNeverWrittenIsCorrupt) {
  auto store = harness_.must_open({nvme_shard("h.3 exp_avg", 4 * sector, sector)});
  auto read = read_range(harness_, *store, first, {0, sector});
  ASSERT_TRUE(read.has_value());
  const auto verified = store->verify(first, 2, read->data());
  ASSERT_FALSE(verified.has_value());
  EXPECT_EQ(verified.error().code, ErrorCode::Corrupt);
  EXPECT_EQ(verified.error().file, harness_.swap_path());
  EXPECT_NE(verified.error().message.find("shard h.3 exp_avg, block 2: was never written"),
            std::string::npos)
      << verified.error().message;
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, DiskErrorsNameShardFileAndOffset) {
  auto store = harness_.must_open(
      {nvme_shard("other", 16 * sector, sector), nvme_shard("h.0 master", 64 * sector, sector)});
  const ShardId id{1};
  ASSERT_TRUE(write_range(harness_, *store, id, {0, 64 * sector}, 1).has_value());
  const std::uint64_t start = 4 * sector + 16 * sector;  // superblocks and the other shard
  harness_.faults.offset = start + 40 * sector;

  harness_.faults.system_error = EIO;
  const auto read = read_range(harness_, *store, id, {0, 64 * sector});
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::Io);
  EXPECT_EQ(read.error().system_error, EIO);
  EXPECT_EQ(read.error().file, harness_.swap_path());
  EXPECT_LE(read.error().offset, harness_.faults.offset);
  EXPECT_GT(read.error().offset + read.error().length, harness_.faults.offset);
  EXPECT_EQ(read.error().message.rfind("reading shard h.0 master: ", 0), 0u)
      << read.error().to_string();

  harness_.faults.operation = aio::Operation::Write;
  harness_.faults.system_error = ENOSPC;
  const auto written = write_range(harness_, *store, id, {0, 64 * sector}, 2);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(written.error().message.rfind("writing shard h.0 master: ", 0), 0u)
      << written.error().to_string();

  // The file's content is unknown now: the first cause sticks, for every shard in it.
  harness_.faults.system_error = 0;
  const auto later = write_range(harness_, *store, id, {0, 64 * sector}, 3);
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().to_string(), written.error().to_string());
  const auto unread = read_range(harness_, *store, ShardId{0}, {0, sector});
  ASSERT_FALSE(unread.has_value());
  EXPECT_EQ(unread.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(unread.error().offset, written.error().offset);
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, BytesAreCountedExactly) {
  auto store = harness_.must_open({nvme_shard("s", 33 * sector, 2 * sector)});
  ASSERT_TRUE(write_range(harness_, *store, first, {0, 33 * sector}, 1).has_value());
  ASSERT_TRUE(write_range(harness_, *store, first, {32 * sector, sector}, 2).has_value());
  auto read = read_range(harness_, *store, first, {3 * sector, 5 * sector});
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(store->verify(first, 2, read->data() + sector).has_value());
  EXPECT_FALSE(store->verify(first, 3, read->data()).has_value());  // bytes of another place
  const auto counted = store->statistics();
  EXPECT_EQ(counted.bytes_written, 34 * sector);
  EXPECT_EQ(counted.bytes_read, 5 * sector);
  EXPECT_EQ(counted.blocks_verified, 2u);
  EXPECT_EQ(counted.verify_failures, 1u);
  EXPECT_EQ(harness_.engine().statistics().bytes_written, 34 * sector);
  EXPECT_EQ(harness_.engine().statistics().bytes_read, 5 * sector);
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, SampleLooksAtEverySixteenthBlockAndOffAtNone) {
  for (const auto& [verify, looked_at] :
       {std::pair{Verify::Sample, std::vector<std::uint64_t>{0, 16, 32}}, {Verify::Off, {}}}) {
    auto store = harness_.must_open({nvme_shard("s", 40 * sector, sector)}, verify);
    ASSERT_TRUE(write_range(harness_, *store, first, {0, 40 * sector}, 1).has_value());
    const std::vector<std::byte> wrong(sector);
    std::vector<std::uint64_t> failures;  // the first block, too, the only one of a small shard
    for (std::uint64_t block = 0; block < 40; ++block) {
      if (!store->verify(first, block, wrong.data()).has_value()) failures.push_back(block);
    }
    EXPECT_EQ(failures, looked_at);
    EXPECT_EQ(store->statistics().blocks_verified, looked_at.size());
    EXPECT_TRUE(store->close().has_value());
  }
}

TEST_P(TierStoreTest, MemoryHomesAreDistinctAndBudgetsHard) {
  std::vector<ShardOptions> shards;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(
        {.name = "d", .home = Tier::Device, .bytes = 256 << 10, .block_bytes = sector});
    shards.push_back({.name = "h", .home = Tier::Host, .bytes = 512 << 10, .block_bytes = sector});
  }
  auto store = harness_.must_open(shards);  // both pools are now full
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    fill(store->memory(ShardId{i}), shards[i].bytes, i);
  }
  std::vector<std::byte> expected(512 << 10);
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    fill(expected.data(), shards[i].bytes, i);
    EXPECT_EQ(std::memcmp(store->memory(ShardId{i}), expected.data(), shards[i].bytes), 0) << i;
  }
  EXPECT_EQ(harness_.device->statistics().bytes_in_use, 1u << 20);
  EXPECT_EQ(harness_.host->statistics().bytes_in_use, 2u << 20);
  EXPECT_TRUE(store->close().has_value());
  EXPECT_EQ(harness_.device->statistics().bytes_in_use, 0u);

  shards.push_back(
      {.name = "one more", .home = Tier::Host, .bytes = sector, .block_bytes = sector});
  const auto refused = harness_.open(shards);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  EXPECT_EQ(refused.error().message.rfind("cannot place shard one more: host: no free run", 0), 0u)
      << refused.error().to_string();
  EXPECT_EQ(harness_.host->statistics().bytes_in_use, 0u);
  EXPECT_TRUE(harness_.files().list(harness_.directory()).value().empty());
}

TEST_P(TierStoreTest, CloseLeavesNothingBehind) {
  const auto before = test_support::Baseline::now();
  {
    auto store = harness_.must_open({nvme_shard("s", 64 * sector, sector)});
    std::vector<std::unique_ptr<Transfer>> completions;
    for (std::uint64_t i = 0; i < 16; ++i) {  // closes with reads in flight
      completions.push_back(std::make_unique<Transfer>());
      store->read(*completions.back(), first, {0, 64 * sector}, harness_.buffer(64 * sector),
                  aio::Priority::Prefetch);
    }
    EXPECT_TRUE(store->close().has_value());
    for (const auto& completion : completions) EXPECT_TRUE(completion->ready());
  }
  EXPECT_EQ(harness_.staging->statistics().bytes_in_use, 0u);
  EXPECT_TRUE(harness_.files().list(harness_.directory()).value().empty());
  EXPECT_LE(test_support::Baseline::settled(before), before);
}

TEST_P(TierStoreTest, AnyThreadMaySealAndVerifyDistinctBlocks) {
  auto store = harness_.must_open({nvme_shard("s", 64 * sector, sector)});
  BufferLease buffer = harness_.buffer(64 * sector);
  fill(buffer.data(), buffer.size(), 1);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint64_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      for (std::uint64_t block = part; block < 64; block += 4) {
        const std::byte* const data = buffer.data() + block * sector;
        store->seal(first, block, data);
        failures += store->verify(first, block, data).has_value() ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(store->statistics().blocks_verified, 64u);
  EXPECT_TRUE(store->close().has_value());
}

TEST_P(TierStoreTest, AShadowIsTakenBackOrBecomesThePlace) {
  const std::uint64_t bytes = 5 * sector;
  auto store = harness_.must_open({nvme_shard("s", bytes, 2 * sector)});
  ASSERT_TRUE(write_range(harness_, *store, first, {0, bytes}, 1).has_value());
  ASSERT_TRUE(store->grow({nvme_shard("later", sector, sector)}, {{first}}).has_value());
  const ShardId later{1};
  EXPECT_EQ(store->size(), 2u);
  ASSERT_TRUE(write_range(harness_, *store, later, {0, sector}, 9).has_value());
  const auto expect = [&](ShardId id, std::uint64_t stream) {
    const ShardOptions& shard = store->shard(id);
    std::vector<std::byte> expected(shard.bytes);
    fill(expected.data(), shard.bytes, stream);
    auto read = read_range(harness_, *store, id, {0, shard.bytes});
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(std::memcmp(read->data(), expected.data(), shard.bytes), 0) << stream;
    for (std::uint64_t block = 0; block * shard.block_bytes < shard.bytes; ++block) {
      const std::byte* data = read->data() + block * shard.block_bytes;
      EXPECT_TRUE(store->verify(id, block, data).has_value());
    }
  };
  std::uint64_t place = 1;  // what is there
  for (std::uint64_t stream = 2; stream < 10; ++stream) {
    store->begin_shadow(first);
    ASSERT_TRUE(write_range(harness_, *store, first, {0, bytes}, stream).has_value());
    expect(first, place);  // the shadow is not read
    const bool keeps = stream % 3 != 0;
    keeps ? store->commit_shadow(first) : store->drop_shadow(first);
    if (keeps) place = stream;
    expect(first, place);
    if (stream % 4 != 0) continue;
    place = 100 + stream;
    ASSERT_TRUE(write_range(harness_, *store, first, {0, bytes}, place).has_value());
    expect(first, place);
  }
  expect(later, 9);
  EXPECT_TRUE(store->close().has_value());
}

// Shards with the same bytes at the same place, written as often.
TEST(TierStoreGrow, AShadowsChecksumsAreNotThoseOfItsPlace) {
  Harness harness(Backend::Memory);
  auto store =
      harness.must_open({nvme_shard("s", sector, sector), nvme_shard("t", sector, sector)});
  ASSERT_TRUE(store->grow({}, {{first, ShardId{1}}}).has_value());
  const std::vector<std::byte> data(sector);
  std::vector<std::uint64_t> sums;
  for (const bool shadowed : {false, true}) {
    for (const ShardId id : {first, ShardId{1}}) {
      if (shadowed) store->begin_shadow(id);
      sums.push_back(store->sum_to_seal(id, 0, {0, sector}, data.data()));
      if (shadowed) store->drop_shadow(id);
    }
  }
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(std::adjacent_find(sums.begin(), sums.end()), sums.end());
  EXPECT_TRUE(store->close().has_value());
}

TEST(TierStoreGrow, MoreThanHalfOfWhatIsFreeIsRefusedAndLeavesTheStoreAsItWas) {
  Harness harness(Backend::Memory);
  auto store = harness.must_open({nvme_shard("s", 400 << 20, 1 << 20)});  // 623 MiB are left
  const auto refused = store->grow({nvme_shard("more", sector, sector)}, {{first}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace) << refused.error().to_string();
  EXPECT_NE(refused.error().message.find("half at most is taken, 400 MiB"), std::string::npos)
      << refused.error().to_string();
  EXPECT_EQ(store->size(), 1u);
  EXPECT_TRUE(store->grow({nvme_shard("more", sector, sector)}, {}).has_value());
  EXPECT_EQ(store->size(), 2u);
  EXPECT_TRUE(store->close().has_value());
}

TEST(TierStoreTimeout, SaysWhatHangsAndGoesOnLater) {
  Harness harness(Backend::Memory);
  auto store =
      harness.open({nvme_shard("h.1 param", 64 * sector, sector)}, Verify::Full, 0.01).value();
  ASSERT_TRUE(write_range(harness, *store, first, {0, 64 * sector}, 1).has_value());
  harness.memory_engine->hold();
  Transfer read;
  Transfer write;
  store->read(read, first, {0, 8 * sector}, harness.buffer(8 * sector), aio::Priority::Demand);
  store->write(write, first, {8 * sector, sector}, harness.buffer(sector),
               aio::Priority::WriteBack);
  EXPECT_TRUE(store->writing(first));
  const auto waited = store->wait(read, first);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code, ErrorCode::Timeout);
  const std::string text = waited.error().to_string();
  for (const std::string part :
       {"reading shard h.1 param: no answer from the disk within 0.01 s",
        "read of /disk/artesian-0000000000001234-rank0.swap at offset 16384, length 32768, for 0.0",
        "write of /disk/artesian-0000000000001234-rank0.swap at offset 49152, length 4096"}) {
    EXPECT_NE(text.find(part), text.npos) << text;
  }
  EXPECT_FALSE(store->close().has_value());  // cannot, but may be asked again
  harness.memory_engine->release();
  EXPECT_TRUE(store->wait(read, first).has_value());
  EXPECT_FALSE(store->writing(first));
  EXPECT_TRUE(store->close().has_value());
  EXPECT_TRUE(harness.files().list("/disk").value().empty());
}

TEST(TierStoreOpen, AFullDiskIsRefusedWithFigures) {
  Harness harness(Backend::Memory);
  const auto refused = harness.open({nvme_shard("s", 2ull << 30, 1 << 20)});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace);
  EXPECT_NE(refused.error().message.find("needs 2.00 GiB (2147500032 bytes), free are 1.00 GiB"),
            std::string::npos)
      << refused.error().to_string();
  EXPECT_TRUE(harness.files().list("/disk").value().empty());
}

// The table of a shard's checksums is 16 bytes for each of its blocks: here 4 TiB.
TEST(TierStoreOpen, AFullDiskIsRefusedBeforeTheChecksumsTakeMemory) {
  Harness harness(Backend::Memory);
  const auto refused = harness.open({nvme_shard("s", 1ull << 50, sector)});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace) << refused.error().to_string();
  EXPECT_NE(refused.error().message.find("needs 1024 TiB"), std::string::npos)
      << refused.error().to_string();
  EXPECT_TRUE(harness.files().list("/disk").value().empty());
}

class TierStoreDeathTest : public testing::Test {
 protected:
  TierStoreDeathTest() {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    store_ = harness_.must_open(
        {nvme_shard("s", 5 * sector, 2 * sector),
         {.name = "m", .home = Tier::Host, .bytes = sector, .block_bytes = sector}});
    for (std::uint64_t block = 0; block < 2; ++block) store_->seal(first, block, data_.data());
  }
  ~TierStoreDeathTest() override { EXPECT_TRUE(store_->close().has_value()); }
  void write(ByteRange range, std::uint64_t buffer_bytes = 8 * sector) {
    Transfer completion;
    store_->write(completion, first, range, harness_.buffer(buffer_bytes),
                  aio::Priority::WriteBack);
  }
  void read(ByteRange range) {
    Transfer completion;
    store_->read(completion, first, range, harness_.buffer(8 * sector), aio::Priority::Demand);
  }

  Harness harness_{Backend::Memory};
  std::unique_ptr<TierStore> store_;
  std::vector<std::byte> data_ = std::vector<std::byte>(2 * sector);
};

TEST_F(TierStoreDeathTest, WrongRangesAbort) {
  write({0, 4 * sector});                                        // right
  EXPECT_DEATH(read({512, sector}), "CHECK failed");             // offset inside a sector
  EXPECT_DEATH(read({0, sector + 512}), "CHECK failed");         // length too
  EXPECT_DEATH(read({0, 0}), "CHECK failed");                    // nothing
  EXPECT_DEATH(read({4 * sector, 2 * sector}), "CHECK failed");  // beyond the end
  EXPECT_DEATH(read({~0ull - sector + 1, sector}), "CHECK failed");
  EXPECT_DEATH(write({sector, sector}), "CHECK failed");  // half a block
  EXPECT_DEATH(write({0, 3 * sector}), "CHECK failed");
  EXPECT_DEATH(write({4 * sector, sector}), "CHECK failed");     // never sealed
  EXPECT_DEATH(write({0, 4 * sector}, sector), "CHECK failed");  // buffer too small
}

TEST_F(TierStoreDeathTest, WrongUseAborts) {
  Transfer completion;
  EXPECT_DEATH((void)store_->memory(first), "CHECK failed");
  EXPECT_DEATH((void)store_->shard(ShardId{2}), "CHECK failed");
  EXPECT_DEATH((void)store_->block_length(first, 3), "CHECK failed");
  EXPECT_DEATH(store_->seal(first, 3, data_.data()), "CHECK failed");
  EXPECT_DEATH(store_->read(completion, ShardId{1}, {0, sector}, harness_.buffer(sector),
                            aio::Priority::Demand),
               "CHECK failed");
  EXPECT_DEATH(store_->begin_shadow(first), "CHECK failed");  // it has none
  EXPECT_DEATH(store_.reset(), "CHECK failed");               // without close
}

TEST_F(TierStoreDeathTest, AShadowThatWasNotSealedWholeCannotBeKept) {
  EXPECT_TRUE(store_->grow({}, {{first}}).has_value());
  EXPECT_DEATH(store_->drop_shadow(first), "CHECK failed");  // it was not begun
  store_->begin_shadow(first);
  store_->seal(first, 0, data_.data());
  EXPECT_DEATH(store_->commit_shadow(first), "CHECK failed");
}

TEST_F(TierStoreDeathTest, OverlappingTransfersAbort) {
  // Blocks of one sector. Of six, the third and fourth are in flight.
  constexpr std::uint64_t under_way = 2, after = 4, sectors = 6;
  auto store = harness_.open({nvme_shard("t", sectors * sector, sector)}, Verify::Full, 60, 1);
  ASSERT_TRUE(store.has_value());
  for (std::uint64_t block = 0; block < sectors; ++block)
    (*store)->seal(first, block, data_.data());
  const auto begin = [&](Transfer& transfer, bool writes, std::uint64_t from, std::uint64_t to) {
    const ByteRange range{from * sector, (to - from) * sector};
    if (writes) {
      (*store)->write(transfer, first, range, harness_.buffer(range.length), aio::Priority::Demand);
    } else {
      (*store)->read(transfer, first, range, harness_.buffer(range.length), aio::Priority::Demand);
    }
  };
  for (const auto& [writes, then_writes] : {std::pair{true, true}, {true, false}, {false, true}}) {
    SCOPED_TRACE(std::string(writes ? "write" : "read") + (then_writes ? ", write" : ", read"));
    harness_.memory_engine->hold();
    Transfer held;
    begin(held, writes, under_way, after);
    std::deque<Transfer> beside;
    for (std::uint64_t from = 0; from < sectors; ++from) {
      for (std::uint64_t to = from + 1; to <= sectors; ++to) {
        if (from < after && to > under_way) {
          EXPECT_DEATH(begin(beside.emplace_back(), then_writes, from, to), "CHECK failed")
              << from << " to " << to;
        } else if (!then_writes || to == from + 1) {  // those are apart, and from each other
          begin(beside.emplace_back(), then_writes, from, to);
        }
      }
    }
    harness_.memory_engine->release();
    EXPECT_TRUE((*store)->wait(held, first).has_value());
    for (Transfer& transfer : beside) EXPECT_TRUE((*store)->wait(transfer, first).has_value());
  }
  harness_.memory_engine->hold();  // reads may share what they read
  Transfer one, other;
  begin(one, false, 0, sectors);
  begin(other, false, 1, after);
  harness_.memory_engine->release();
  EXPECT_TRUE((*store)->wait(one, first).has_value());
  EXPECT_TRUE((*store)->wait(other, first).has_value());
  EXPECT_TRUE((*store)->close().has_value());
}

TEST_F(TierStoreDeathTest, WrongShardsAbort) {
  const auto open = [this](ShardOptions shard) {
    (void)harness_.open({std::move(shard)}).has_value();
  };
  EXPECT_DEATH(open(nvme_shard("s", 0, sector)), "CHECK failed");
  EXPECT_DEATH(open(nvme_shard("s", 100, sector)), "CHECK failed");
  EXPECT_DEATH(open(nvme_shard("s", sector, 100)), "CHECK failed");
  EXPECT_DEATH(open({.name = "s", .bytes = sector, .block_bytes = sector, .volume = 1}),
               "CHECK failed");
}

}  // namespace
}  // namespace artesian::tiering
