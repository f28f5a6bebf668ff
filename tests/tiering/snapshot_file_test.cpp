// Proves that a snapshot's file holds each block as it was passed, in any order, with a checksum
// that no other place, step or checkpoint shares. If the n-th operation fails, for all n, only the
// snapshot fails. A disk that never answers costs its buffers and a bounded wait, for all n. On
// CrashFiles, and on the kernel's files.
#include "tiering/snapshot_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/durable_folder.h"
#include "tests/support/crash_files.h"
#include "tests/support/simulated_engine.h"
#include "tests/support/temporary_directory.h"
#include "tiering/block_checksums.h"
#include "tiering/snapshot_sums.h"

namespace artesian::tiering {
namespace {

using test_support::CrashEngine;
using test_support::CrashFiles;

constexpr std::uint64_t head_bytes = 8192;
const std::string head(head_bytes, 'h');

std::vector<SnapshotBlock> some_blocks(std::size_t count) {
  std::vector<SnapshotBlock> blocks;
  std::uint64_t offset = head_bytes;
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t length = 4096 * (1 + index % 3);
    blocks.push_back({offset, length});
    offset += length;
  }
  return blocks;
}

/// Lends buffers and counts those that were returned.
struct Buffers final : BufferOwner {
  ~Buffers() {
    for (std::byte* data : out) std::free(data);
  }
  BufferLease lend(std::uint64_t bytes, int value) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    std::fill(data, data + bytes, static_cast<std::byte>(value));
    out.insert(data);
    return {data, bytes, this};
  }
  void give_back(std::byte* data, std::uint64_t) noexcept override {
    out.erase(data);
    std::free(data);
  }
  void abandon(std::byte*, std::uint64_t) noexcept override { ++abandoned; }
  std::set<std::byte*> out;
  int abandoned = 0;
};

SnapshotFileOptions options_for(CrashFiles& files, double stall_seconds = 60.0) {
  SnapshotFileOptions options;
  options.seed = {.checkpoint = 7, .step = 3, .rank = 0};
  options.stall_seconds = stall_seconds;
  options.make_engine = [&files]() -> Result<std::unique_ptr<aio::Engine>> {
    return std::unique_ptr<aio::Engine>(
        std::make_unique<CrashEngine>(aio::EngineOptions{.queue_depth = 4}, files));
  };
  return options;
}

Result<std::unique_ptr<SnapshotFile>> create(Folder& folder,
                                             const std::vector<SnapshotBlock>& blocks,
                                             const SnapshotFileOptions& options) {
  ARTESIAN_TRY(file, folder.open("data", {.create = Create::Exclusive}));
  ARTESIAN_TRY_VOID(file->allocate(blocks.back().offset + blocks.back().length));
  return SnapshotFile::create(std::move(file), blocks, options);
}

void write_block(SnapshotFile& snapshot, const std::vector<SnapshotBlock>& blocks, Buffers& buffers,
                 std::uint64_t block, int value) {
  const std::uint64_t length = blocks[block].length;
  BufferLease lease = buffers.lend(length, value);
  snapshot.set_sum(block, snapshot.sum(block, {0, length}, lease.data()));
  snapshot.write(block, std::move(lease));
}

/// Writes every block, in reverse order. Returns the outcome.
Result<void> write_all(SnapshotFile& snapshot, const std::vector<SnapshotBlock>& blocks,
                       Buffers& buffers) {
  for (std::uint64_t left = blocks.size(); left-- > 0;) {
    write_block(snapshot, blocks, buffers, left, static_cast<int>(left + 1));
  }
  ARTESIAN_TRY_VOID(snapshot.finish());
  return snapshot.sync(head);
}

void expect_content(const std::vector<std::byte>& bytes, const std::vector<SnapshotBlock>& blocks) {
  ASSERT_EQ(bytes.size(), blocks.back().offset + blocks.back().length);
  for (std::uint64_t at = 0; at < head_bytes; ++at) ASSERT_EQ(bytes[at], std::byte{'h'});
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    for (std::uint64_t at = 0; at < blocks[index].length; ++at) {
      ASSERT_EQ(bytes[blocks[index].offset + at], static_cast<std::byte>(index + 1));
    }
  }
}

TEST(SnapshotFile, HoldsEachBlockAsItWasGivenWithItsSum) {
  CrashFiles files;
  const auto folder = files.open_folder("/disk");
  const auto blocks = some_blocks(100);
  Buffers buffers;
  {
    auto snapshot = create(**folder, blocks, options_for(files));
    ASSERT_TRUE(snapshot.has_value());
    ASSERT_TRUE(write_all(**snapshot, blocks, buffers).has_value());
    EXPECT_EQ((*snapshot)->bytes_written(),
              blocks.back().offset + blocks.back().length - head_bytes);
    const auto sums = read_snapshot_sums((*snapshot)->sums_text(), (*snapshot)->bytes_written());
    ASSERT_TRUE(sums.has_value());
    const auto& bytes = files.bytes_of("/disk/data");
    for (std::uint64_t index = 0; index < blocks.size(); ++index) {
      const SnapshotSeed seed{.checkpoint = 7, .step = 3, .rank = 0};
      EXPECT_EQ((*sums)[index].sum, BlockChecksums::sum_of_pieces(
                                        seed.of_block(index), 0,
                                        bytes.data() + blocks[index].offset, blocks[index].length));
    }
  }
  EXPECT_TRUE(buffers.out.empty());
  expect_content(files.bytes_of("/disk/data"), blocks);
  ASSERT_TRUE((*folder)->sync().has_value());
  expect_content(files.after_cut(files.logged(), test_support::Cut::NothingUnsynced, 1)
                     ->bytes_of("/disk/data"),
                 blocks);
}

TEST(SnapshotFile, SumsDifferByCheckpointStepRankAndBlock) {
  std::set<std::uint64_t> seeds;
  for (const std::uint64_t checkpoint : {1, 2}) {
    for (const std::uint64_t step : {1, 2}) {
      for (const std::uint32_t rank : {0u, 1u}) {
        for (std::uint64_t block = 0; block < 100; ++block) {
          seeds.insert(SnapshotSeed{checkpoint, step, rank}.of_block(block));
        }
      }
    }
  }
  EXPECT_EQ(seeds.size(), 800u);
}

TEST(SnapshotFile, SumsOfPartsMakeThatOfTheBlock) {
  CrashFiles files;
  const auto folder = files.open_folder("/disk");
  const auto snapshot = create(**folder, {{4096, SnapshotBlock::bytes_max}}, options_for(files));
  ASSERT_TRUE(snapshot.has_value());
  std::vector<std::byte> bytes(SnapshotBlock::bytes_max);
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 7 / 3);
  const std::uint64_t whole = (*snapshot)->sum(0, {0, bytes.size()}, bytes.data());
  std::uint64_t parts = 0;
  for (std::uint64_t at = 0; at < bytes.size(); at += BlockChecksums::piece_bytes) {
    parts += (*snapshot)->sum(0, {at, BlockChecksums::piece_bytes}, bytes.data() + at);
  }
  EXPECT_EQ(parts, whole);
  (*snapshot)->fail(make_error(ErrorCode::Cancelled, "not written"));
}

TEST(SnapshotFile, ABlockThatIsTakenBackIsWrittenAgain) {
  CrashFiles files;
  const auto folder = files.open_folder("/disk");
  const auto blocks = some_blocks(3);
  Buffers buffers;
  auto snapshot = create(**folder, blocks, options_for(files));
  ASSERT_TRUE(snapshot.has_value());
  for (std::uint64_t block = 0; block < 3; ++block)
    write_block(**snapshot, blocks, buffers, block, 99);
  (*snapshot)->forget(1);
  EXPECT_FALSE((*snapshot)->has(1));
  ASSERT_TRUE(write_all(**snapshot, blocks, buffers).has_value());
  expect_content(files.bytes_of("/disk/data"), blocks);
}

// A disk that reorders the requests in flight.
TEST(SnapshotFile, CountsTheBytesOfTheBlocksThatItHas) {
  CrashFiles files;
  auto folder = files.open_folder("/disk").value();
  const auto blocks = some_blocks(5);
  Buffers buffers;
  auto snapshot = create(*folder, blocks, options_for(files)).value();
  std::uint64_t all = 0;
  for (const SnapshotBlock& block : blocks) all += block.length;
  EXPECT_EQ(snapshot->bytes_of_blocks(), all);
  EXPECT_EQ(snapshot->bytes_given(), 0u);
  write_block(*snapshot, blocks, buffers, 2, 1);
  write_block(*snapshot, blocks, buffers, 2, 2);
  EXPECT_EQ(snapshot->bytes_given(), blocks[2].length);
  write_block(*snapshot, blocks, buffers, 4, 3);
  snapshot->forget(2);
  snapshot->forget(1);
  EXPECT_EQ(snapshot->bytes_given(), blocks[4].length);
  EXPECT_TRUE(snapshot->finish().has_value());
}

TEST(SnapshotFile, OfTwoWritesOfABlockTheLaterStays) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CrashFiles files;
    const auto folder = files.open_folder("/disk");
    const auto blocks = some_blocks(3);
    Buffers buffers;
    SnapshotFileOptions options = options_for(files);
    options.make_engine = [seed]() -> Result<std::unique_ptr<aio::Engine>> {
      return std::unique_ptr<aio::Engine>(std::make_unique<test_support::SimulatedEngine>(
          aio::EngineOptions{.queue_depth = 8}, test_support::SimulatedOptions{.seed = seed}));
    };
    auto snapshot = create(**folder, blocks, options);
    ASSERT_TRUE(snapshot.has_value());
    for (std::uint64_t block = 0; block < 3; ++block)
      write_block(**snapshot, blocks, buffers, block, 99);
    const auto outcome = write_all(**snapshot, blocks, buffers);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
    expect_content(files.bytes_of("/disk/data"), blocks);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(SnapshotFile, TheNthOperationFailingIsItsFaultAlone) {
  const auto blocks = some_blocks(90);
  int failures = 0;
  for (const int system_error : {EIO, ENOSPC}) {
    for (std::uint64_t operation = 0;; ++operation) {
      CrashFiles files;
      const auto folder = files.open_folder("/disk");
      Buffers buffers;
      files.plan(operation, CrashFiles::Fault::Fails, system_error);
      auto snapshot = create(**folder, blocks, options_for(files));
      bool good = snapshot.has_value();
      if (good) {
        const auto outcome = write_all(**snapshot, blocks, buffers);
        good = outcome.has_value();
        if (!good) {
          EXPECT_EQ(outcome.error().system_error, system_error);
        }
      }
      if (snapshot.has_value()) snapshot->reset();
      EXPECT_TRUE(buffers.out.empty());
      EXPECT_EQ(buffers.abandoned, 0);
      if (good) {
        EXPECT_GT(operation, 90u);
        break;
      }
      ++failures;
    }
  }
  EXPECT_GT(failures, 180);
}

TEST(SnapshotFile, ADiskThatNeverAnswersCostsItsBuffersAndABoundedWait) {
  const auto blocks = some_blocks(90);
  double patience = 0.02;  // seconds; a busy machine takes more
  for (std::uint64_t hung = 0; hung < 90;) {
    CrashFiles files;
    const auto folder = files.open_folder("/disk");
    static auto& buffers = *new Buffers;  // buffers that are never returned lie in it
    auto snapshot = create(**folder, blocks, options_for(files, patience));
    ASSERT_TRUE(snapshot.has_value());
    const int abandoned = buffers.abandoned;
    files.plan(hung, CrashFiles::Fault::NeverAnswers);
    const auto outcome = write_all(**snapshot, blocks, buffers);
    ASSERT_FALSE(outcome.has_value());
    EXPECT_EQ(outcome.error().code, ErrorCode::Timeout) << outcome.error().to_string();
    EXPECT_NE(outcome.error().to_string().find("does not answer"), std::string::npos);
    EXPECT_EQ((*snapshot)->in_flight(), 0u);
    write_block(**snapshot, blocks, buffers, 0, 1);  // is dropped
    EXPECT_EQ(buffers.out.size(), static_cast<std::size_t>(buffers.abandoned));
    static auto& kept = *new std::vector<Result<std::unique_ptr<SnapshotFile>>>;
    kept.push_back(std::move(snapshot));
    if (buffers.abandoned > abandoned + 1 && patience < 2.0) {  // other answers were late, too
      patience *= 2;
      continue;
    }
    EXPECT_EQ(buffers.abandoned, abandoned + 1);
    hung += hung < 8 ? 1 : 9;
  }
}

TEST(SnapshotFile, OnARealDiskTheBytesAreThere) {
  const test_support::TemporaryDirectory directory;
  const auto folder = system_files().open_folder(directory.path());
  ASSERT_TRUE(folder.has_value());
  const auto blocks = some_blocks(200);
  Buffers buffers;
  {
    auto snapshot = create(**folder, blocks, {});
    ASSERT_TRUE(snapshot.has_value());
    const auto outcome = write_all(**snapshot, blocks, buffers);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  }
  EXPECT_TRUE(buffers.out.empty());
  const std::string text = directory.read("data");
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  expect_content(bytes, blocks);
}

TEST(SnapshotSums, DamageOfTheirShapeIsRefused) {
  const std::vector<SnapshotSum> sums{{1, 4096}, {2, 1 << 20}, {3, 8192}};
  const std::uint64_t data = 4096 + (1 << 20) + 8192;
  const std::string good = write_snapshot_sums(sums);
  ASSERT_EQ(good.size(), snapshot_sums_size(3));
  ASSERT_TRUE(read_snapshot_sums(good, data).has_value());
  const auto expect_refused = [&](const std::string& text, std::uint64_t bytes) {
    const auto read = read_snapshot_sums(text, bytes);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, ErrorCode::Corrupt);
  };
  expect_refused(good, data + 4096);
  expect_refused(good, data - 4096);
  for (std::size_t cut = 0; cut < good.size(); ++cut) expect_refused(good.substr(0, cut), data);
  expect_refused(good + std::string(16, '\0'), data);
  for (std::size_t byte = 0; byte < 16; ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 1);
    expect_refused(bad, data);
  }
  for (const std::size_t entry : {0, 1, 2}) {
    for (std::size_t byte = 8; byte < 16; ++byte) {
      std::string bad = good;
      bad[16 + 16 * entry + byte] = static_cast<char>(bad[16 + 16 * entry + byte] ^ 0x11);
      expect_refused(bad, data);
    }
  }
}

}  // namespace
}  // namespace artesian::tiering
