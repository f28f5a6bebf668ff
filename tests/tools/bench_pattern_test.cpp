// Proves that aio_bench's check of its data sees what it is there for: any flipped bit, a block of
// another place, a block of an earlier pass.
#include "tools/bench_pattern.h"

#include <gtest/gtest.h>

namespace artesian::bench {
namespace {

constexpr std::uint64_t block_size = 4 * Pattern::sector;

std::vector<std::byte> written(const Pattern& pattern, std::uint64_t offset, std::uint64_t pass) {
  std::vector<std::byte> block(block_size);
  pattern.fill(block);
  Pattern::stamp(block, offset, pass);
  return block;
}

TEST(BenchPattern, AcceptsWhatWasWritten) {
  const Pattern pattern(block_size);
  const auto block = written(pattern, 3 * block_size, 2);
  EXPECT_TRUE(pattern.whole(block, 3 * block_size, 2));
  EXPECT_TRUE(Pattern::sampled(block, 3 * block_size, 2));
  const std::span<const std::byte> tail(block.data(), Pattern::sector);
  EXPECT_TRUE(pattern.whole(tail, 3 * block_size, 2));
}

TEST(BenchPattern, SamplesWhatIsStampedNowAndThen) {
  const Pattern pattern(2 * Pattern::sample);
  std::vector<std::byte> block(2 * Pattern::sample);
  pattern.fill(block);
  Pattern::stamp(block, Pattern::sample, 5, Pattern::sample);
  EXPECT_TRUE(Pattern::sampled(block, Pattern::sample, 5));
  EXPECT_FALSE(Pattern::sampled(block, Pattern::sample, 4));
  EXPECT_FALSE(Pattern::sampled(block, 0, 5));
  EXPECT_FALSE(pattern.whole(block, Pattern::sample, 5));
  block[Pattern::sample] ^= std::byte{1};
  EXPECT_FALSE(Pattern::sampled(block, Pattern::sample, 5));
}

TEST(BenchPattern, LooksAtEverySampleInTurn) {
  constexpr std::uint64_t samples = 3;
  std::vector<std::byte> block(samples * Pattern::sample - Pattern::sector);  // the last is short
  Pattern::stamp(block, 0, 5, Pattern::sample);
  for (std::uint64_t wrong = 0; wrong < samples; ++wrong) {
    block[wrong * Pattern::sample] ^= std::byte{1};
    for (std::uint64_t choice = 0; choice < 2 * samples; ++choice) {
      EXPECT_EQ(Pattern::spot(block, 0, 5, choice), choice % samples != wrong);
    }
    block[wrong * Pattern::sample] ^= std::byte{1};
  }
  const std::span<const std::byte> tail(block.data(), Pattern::sector);
  EXPECT_TRUE(Pattern::spot(tail, 0, 5, 7));
  EXPECT_FALSE(Pattern::spot(tail, 0, 4, 7));
}

TEST(BenchPattern, SeesMisplacedAndStaleBlocks) {
  const Pattern pattern(block_size);
  const auto block = written(pattern, 3 * block_size, 2);
  for (const auto& [offset, pass] : {std::pair{2 * block_size, 2}, {3 * block_size, 1}}) {
    EXPECT_FALSE(pattern.whole(block, offset, static_cast<std::uint64_t>(pass)));
    EXPECT_FALSE(Pattern::sampled(block, offset, static_cast<std::uint64_t>(pass)));
  }
}

TEST(BenchPattern, SeesEveryFlippedBit) {
  const Pattern pattern(block_size);
  auto block = written(pattern, 0, 1);
  for (std::uint64_t index = 0; index < block_size; ++index) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      block[index] ^= std::byte{1} << bit;
      ASSERT_FALSE(pattern.whole(block, 0, 1)) << index << " " << bit;
      block[index] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(pattern.whole(block, 0, 1));
}

}  // namespace
}  // namespace artesian::bench
