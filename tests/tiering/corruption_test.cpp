// Proves that no damaged block passes for a good one: rows 13 and 14 of the reliability table. The
// swap file is damaged behind the store's back, in one of these ways for each of 10,000 blocks: a
// flipped bit, a block in another's place, two blocks exchanged, a misdirected write, the bytes of
// an earlier write. Blocks of one rank never pass for those of another rank of the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/process.h"
#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t block_bytes = 4096;
constexpr std::uint64_t blocks = 10'000;
constexpr std::uint64_t shard_bytes = blocks / 2 * block_bytes;
constexpr std::uint64_t payload_offset = 4 * 4096;  // after the superblocks

class CorruptionTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!harness_.available()) GTEST_SKIP() << "the kernel refuses this engine";
    const ShardOptions shard{.name = "s", .bytes = shard_bytes, .block_bytes = block_bytes};
    store_ = harness_.must_open({shard, shard});
    write(1);
  }
  void TearDown() override {
    if (store_ == nullptr) return;
    EXPECT_TRUE(store_->close().has_value());
  }

  void write(std::uint64_t stream) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(
          write_range(harness_, *store_, ShardId{i}, {0, shard_bytes}, 2 * stream + i).has_value());
    }
  }
  std::vector<std::byte> stored() {
    std::vector<std::byte> bytes(blocks * block_bytes);
    EXPECT_TRUE(
        harness_.swap_file()->read_at(bytes.data(), bytes.size(), payload_offset).has_value());
    return bytes;
  }
  void store_back(const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(
        harness_.swap_file()->write_at(bytes.data(), bytes.size(), payload_offset).has_value());
  }
  std::uint64_t detected() {
    std::uint64_t count = 0;
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto read = read_range(harness_, *store_, ShardId{i}, {0, shard_bytes});
      EXPECT_TRUE(read.has_value());
      for (std::uint64_t block = 0; block < blocks / 2; ++block) {
        const auto verified = store_->verify(ShardId{i}, block, read->data() + block * block_bytes);
        if (verified.has_value()) continue;
        ++count;
        EXPECT_EQ(verified.error().code, ErrorCode::Corrupt);
        EXPECT_EQ(verified.error().offset, payload_offset + i * shard_bytes + block * block_bytes);
      }
    }
    return count;
  }

  Harness harness_{GetParam()};
  std::unique_ptr<TierStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Engines, CorruptionTest,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::IoUring,
                                         Backend::Simulated),
                         backend_name);

TEST_P(CorruptionTest, EveryFlippedBitIsDetected) {
  EXPECT_EQ(detected(), 0u);
  std::mt19937_64 random(test_support::test_seed(13));
  auto bytes = stored();
  for (std::uint64_t block = 0; block < blocks; ++block) {
    bytes[block * block_bytes + random() % block_bytes] ^=
        static_cast<std::byte>(1u << (random() % 8));
  }
  store_back(bytes);
  EXPECT_EQ(detected(), blocks);
  EXPECT_EQ(store_->statistics().verify_failures, blocks);
}

TEST_P(CorruptionTest, EveryMisplacedBlockIsDetected) {
  std::mt19937_64 random(test_support::test_seed(14));
  const auto bytes = stored();
  auto moved = bytes;
  const std::uint64_t shift = 1 + random() % (blocks - 1);  // each block goes somewhere else
  for (std::uint64_t block = 0; block < blocks; ++block) {
    std::memcpy(moved.data() + (block + shift) % blocks * block_bytes,
                bytes.data() + block * block_bytes, block_bytes);
  }
  store_back(moved);
  EXPECT_EQ(detected(), blocks);
  store_back(bytes);
  EXPECT_EQ(detected(), 0u);
}

// The same bytes in the same block of the same shard of the same run, sealed as many times.
TEST_P(CorruptionTest, WhatAnotherRankSealsDoesNotPass) {
  const ShardOptions shard{.name = "s", .bytes = shard_bytes, .block_bytes = block_bytes};
  auto other = harness_.open({shard, shard}, Verify::Full, 60.0, /*rank=*/1).value();
  std::vector<std::byte> data(block_bytes);
  fill(data.data(), block_bytes, 16);
  const ByteRange whole{0, block_bytes};
  for (std::uint32_t i = 0; i < 2; ++i) {
    const ShardId id{i};
    store_->seal(id, 3, data.data());
    other->seal(id, 3, data.data());
    other->seal(id, 3, data.data());  // the second time, as that of `store_`
    EXPECT_TRUE(store_->verify(id, 3, data.data()).has_value());
    EXPECT_TRUE(other->verify(id, 3, data.data()).has_value());
    const std::uint64_t theirs = other->sum_to_verify(id, 3, whole, data.data());
    EXPECT_NE(theirs, store_->sum_to_verify(id, 3, whole, data.data()));
    EXPECT_FALSE(store_->verify_sum(id, 3, theirs).has_value());
  }
  EXPECT_TRUE(other->close().has_value());
}

// Random pairs, within one shard and across both: each block is valid by itself, but in the other's
// place.
TEST_P(CorruptionTest, EveryExchangedBlockIsDetected) {
  std::mt19937_64 random(test_support::test_seed(15));
  auto bytes = stored();
  std::vector<std::uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (std::uint64_t i = 0; i < blocks; i += 2) {
    std::byte* const first = bytes.data() + order[i] * block_bytes;
    std::swap_ranges(first, first + block_bytes, bytes.data() + order[i + 1] * block_bytes);
  }
  store_back(bytes);
  EXPECT_EQ(detected(), blocks);
}

// Every second write of a new generation hits the neighbouring block: one block is then stale, the
// other wrong.
TEST_P(CorruptionTest, EveryMisdirectedWriteIsDetectedTwice) {
  write(3);
  auto bytes = stored();
  write(4);
  const auto fresh = stored();
  for (std::uint64_t block = 0; block < blocks; block += 2) {
    std::memcpy(bytes.data() + (block + 1) * block_bytes, fresh.data() + block * block_bytes,
                block_bytes);
  }
  store_back(bytes);
  EXPECT_EQ(detected(), blocks);
}

TEST_P(CorruptionTest, EveryStaleBlockIsDetected) {
  const auto earlier = stored();
  write(2);
  EXPECT_EQ(detected(), 0u);
  store_back(earlier);  // as if the second write had been lost
  EXPECT_EQ(detected(), blocks);
}

}  // namespace
}  // namespace artesian::tiering
