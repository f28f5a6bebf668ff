// Proves that aio_bench's check of its data detects any flipped bit, a block of another place, and
// a block of an earlier pass.
#include "tools/aio_bench/bench_pattern.h"

#include <gtest/gtest.h>

namespace artesian::bench {
namespace {

constexpr std::uint64_t block_size = 4 * Pattern::sector;

std::vector<std::byte> written(const Pattern& pattern, std::uint64_t offset, std::uint32_t pass,
                               std::uint32_t buffer) {
  std::vector<std::byte> block(block_size);
  pattern.fill(block);
  Pattern::mark(block, buffer);
  pattern.stamp(block, offset, pass);
  return block;
}

TEST(BenchPattern, AcceptsWhatWasWritten) {
  const Pattern pattern(block_size);
  const auto block = written(pattern, 3 * block_size, 2, 7);
  EXPECT_TRUE(pattern.whole(block, 3 * block_size, 2, 7));
  const std::span<const std::byte> tail(block.data(), Pattern::sector);
  EXPECT_TRUE(pattern.whole(tail, 3 * block_size, 2, 7));
}

TEST(BenchPattern, LooksAtEverySampleInTurn) {
  constexpr std::uint64_t samples = 3;
  constexpr std::uint64_t sample = Pattern::sample_min;
  std::vector<std::byte> block(samples * sample - Pattern::sector);  // the last is short
  const Pattern pattern(block.size());
  pattern.stamp(block, 0, 5);
  for (std::uint64_t wrong = 0; wrong < samples; ++wrong) {
    block[wrong * sample] ^= std::byte{1};
    for (std::uint64_t choice = 0; choice < 2 * samples; ++choice) {
      EXPECT_EQ(pattern.spot(block, 0, 5, choice), choice % samples != wrong);
    }
    block[wrong * sample] ^= std::byte{1};
  }
  const std::span<const std::byte> tail(block.data(), Pattern::sector);
  EXPECT_TRUE(pattern.spot(tail, 0, 5, 7));
  EXPECT_FALSE(pattern.spot(tail, 0, 4, 7));
}

TEST(BenchPattern, SeesMisplacedAndStaleBlocks) {
  const Pattern pattern(block_size);
  const auto block = written(pattern, 3 * block_size, 2, 7);
  EXPECT_FALSE(pattern.whole(block, 2 * block_size, 2, 7));
  EXPECT_FALSE(pattern.whole(block, 3 * block_size, 1, 7));
  EXPECT_FALSE(pattern.whole(block, 3 * block_size, 2, 6));
  EXPECT_FALSE(pattern.spot(block, 2 * block_size, 2, 0));
  EXPECT_FALSE(pattern.spot(block, 3 * block_size, 1, 0));
}

TEST(BenchPattern, StampsFourSectorsAtMostAndMarksAllOthers) {
  constexpr std::uint64_t sample = Pattern::sample_min;
  for (const std::uint64_t size : {2 * sample, 4 * sample, 16 * sample}) {
    const Pattern pattern(size);
    std::vector<std::byte> block(size);
    std::vector<std::byte> other(size);
    const auto differing = [&] {
      std::vector<std::uint64_t> sectors;
      for (std::uint64_t at = 0; at < size; at += Pattern::sector) {
        if (std::memcmp(&block[at], &other[at], 8) != 0) sectors.push_back(at);
      }
      return sectors;
    };
    Pattern::mark(block, 1);
    Pattern::mark(other, 2);
    EXPECT_EQ(differing().size(), size / Pattern::sector);
    other = block;
    pattern.stamp(other, 0, 1);
    std::vector<std::uint64_t> expected;
    const std::uint64_t stamps = std::min<std::uint64_t>(4, size / sample);
    for (std::uint64_t index = 0; index < stamps; ++index) {
      expected.push_back(index * (size / stamps));
    }
    EXPECT_EQ(differing(), expected) << size;
  }
}

TEST(BenchPattern, SeesEveryFlippedBit) {
  const Pattern pattern(block_size);
  auto block = written(pattern, 0, 1, 1);
  for (std::uint64_t index = 0; index < block_size; ++index) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      block[index] ^= std::byte{1} << bit;
      ASSERT_FALSE(pattern.whole(block, 0, 1, 1)) << index << " " << bit;
      block[index] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(pattern.whole(block, 0, 1, 1));
}

}  // namespace
}  // namespace artesian::bench
