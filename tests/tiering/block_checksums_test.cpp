// Proves that a block's checksum, though it is a sum over pieces, detects what one over the whole
// block would: any changed byte, pieces that are exchanged or moved to another block, and pieces of
// an earlier generation. Equal blocks of two ranks, shards or runs have different checksums. It
// does not matter which parts are summed, and in which order.
#include "tiering/block_checksums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/process.h"

namespace artesian::tiering {
namespace {

using Finding = BlockChecksums::Finding;
using Generation = BlockChecksums::Generation;

constexpr std::uint64_t piece = BlockChecksums::piece_bytes;
constexpr std::uint64_t block_bytes = 4 * piece + 4096;  // the last piece is short
constexpr std::uint64_t pieces = 5;

std::vector<std::byte> noise(std::mt19937_64& random) {
  std::vector<std::byte> bytes(block_bytes);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

std::uint64_t length_of(std::uint64_t index) {
  return std::min(piece, block_bytes - index * piece);
}

Finding found(const BlockChecksums& checksums, const std::vector<std::byte>& data) {
  return checksums.compare(0, data.data(), data.size());
}

TEST(BlockChecksums, DependOnWhoseBlockItIs) {
  const std::vector<std::byte> data(block_bytes);
  const BlockChecksums::Owner owner{.run_id = 7, .rank = 2, .shard = 1};
  const auto sum = [&](const BlockChecksums::Owner& whose, std::uint64_t block) {
    return BlockChecksums(whose, 2).sum(block, Generation::Next, 0, data.data(), block_bytes);
  };
  EXPECT_EQ(sum(owner, 0), sum(owner, 0));
  std::vector<std::uint64_t> sums{sum(owner, 0), sum(owner, 1)};
  sums.push_back(sum({.run_id = 8, .rank = 2, .shard = 1}, 0));
  sums.push_back(sum({.run_id = 7, .rank = 1, .shard = 1}, 0));
  sums.push_back(sum({.run_id = 7, .rank = 1, .shard = 2}, 0));
  sums.push_back(sum({.run_id = 7, .rank = 2, .shard = 2}, 0));
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(std::adjacent_find(sums.begin(), sums.end()), sums.end());
}

TEST(BlockChecksums, MatchWhatWasSealedLast) {
  std::vector<std::byte> data(block_bytes);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 2);
  EXPECT_EQ(checksums.compare(0, data.data(), block_bytes), Finding::NeverSealed);
  checksums.seal(0, data.data(), block_bytes);
  EXPECT_EQ(checksums.generation(0), 1u);
  EXPECT_EQ(checksums.generation(1), 0u);
  EXPECT_EQ(checksums.compare(0, data.data(), block_bytes), Finding::Match);
  EXPECT_EQ(checksums.compare(0, data.data(), block_bytes - 1), Finding::Mismatch);
  EXPECT_EQ(checksums.compare(1, data.data(), block_bytes), Finding::NeverSealed);
  data[17] ^= std::byte{1};
  EXPECT_EQ(checksums.compare(0, data.data(), block_bytes), Finding::Mismatch);
}

TEST(BlockChecksums, AreTheSameHoweverABlockIsCutIntoParts) {
  std::mt19937_64 random(test_support::test_seed(21));
  const auto data = noise(random);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 1);
  checksums.seal(0, data.data(), block_bytes);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint64_t> cuts{0, block_bytes};
    for (std::uint64_t index = 1; index < pieces; ++index) {
      if (random() % 2 == 0) cuts.push_back(index * piece);
    }
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::uint64_t sum = 0;
    for (const std::size_t part : order) {
      const std::uint64_t begin = cuts[part];
      sum +=
          checksums.sum(0, Generation::Current, begin, data.data() + begin, cuts[part + 1] - begin);
    }
    EXPECT_EQ(checksums.compare(0, sum), Finding::Match);
    EXPECT_EQ(checksums.compare(0, sum + 1), Finding::Mismatch);
  }
}

TEST(BlockChecksums, SealedInPartsMatchTheWholeBlock) {
  std::mt19937_64 random(test_support::test_seed(22));
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 1);
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    const auto data = noise(random);
    std::uint64_t sum = 0;
    for (std::uint64_t index = pieces; index-- > 0;) {
      sum += checksums.sum(0, Generation::Next, index * piece, data.data() + index * piece,
                           length_of(index));
    }
    checksums.seal(0, sum);
    EXPECT_EQ(checksums.generation(0), generation);
    EXPECT_EQ(found(checksums, data), Finding::Match);
  }
}

TEST(BlockChecksums, FindAChangedByteInAnyPiece) {
  std::mt19937_64 random(test_support::test_seed(23));
  auto data = noise(random);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 1);
  checksums.seal(0, data.data(), block_bytes);
  for (std::uint64_t index = 0; index < pieces; ++index) {
    std::vector<std::uint64_t> places{0, length_of(index) - 1};
    for (int more = 0; more < 100; ++more) places.push_back(random() % length_of(index));
    for (const std::uint64_t place : places) {
      std::byte& byte = data[index * piece + place];
      const std::byte before = byte;
      byte ^= static_cast<std::byte>(1 + random() % 255);
      EXPECT_EQ(found(checksums, data), Finding::Mismatch) << index << " " << place;
      byte = before;
    }
  }
  EXPECT_EQ(found(checksums, data), Finding::Match);
}

TEST(BlockChecksums, FindTwoPiecesInEachOthersPlace) {
  std::mt19937_64 random(test_support::test_seed(24));
  const auto data = noise(random);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 1);
  checksums.seal(0, data.data(), block_bytes);
  for (std::uint64_t first = 0; first + 1 < pieces; ++first) {
    for (std::uint64_t second = first + 1; second + 1 < pieces; ++second) {
      auto exchanged = data;
      const auto at = exchanged.begin() + static_cast<std::ptrdiff_t>(first * piece);
      std::swap_ranges(at, at + static_cast<std::ptrdiff_t>(piece),
                       exchanged.begin() + static_cast<std::ptrdiff_t>(second * piece));
      EXPECT_EQ(found(checksums, exchanged), Finding::Mismatch) << first << " " << second;
    }
  }
}

TEST(BlockChecksums, FindAPieceOfAnEarlierGenerationOrOfAnotherBlock) {
  std::mt19937_64 random(test_support::test_seed(25));
  const auto earlier = noise(random);
  const auto other = noise(random);
  const auto data = noise(random);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 2);
  checksums.seal(0, earlier.data(), block_bytes);
  checksums.seal(1, other.data(), block_bytes);
  checksums.seal(0, data.data(), block_bytes);
  for (const auto* source : {&earlier, &other}) {
    for (std::uint64_t index = 0; index < pieces; ++index) {
      auto mixed = data;
      const auto from = source->begin() + static_cast<std::ptrdiff_t>(index * piece);
      std::copy(from, from + static_cast<std::ptrdiff_t>(length_of(index)),
                mixed.begin() + static_cast<std::ptrdiff_t>(index * piece));
      EXPECT_EQ(found(checksums, mixed), Finding::Mismatch) << index;
    }
  }
  EXPECT_EQ(found(checksums, data), Finding::Match);
}

// Otherwise a piece that is the same in both generations would pass for the new one.
TEST(BlockChecksums, OfEqualPiecesDifferByPlaceAndGeneration) {
  const std::vector<std::byte> zeros(block_bytes);
  BlockChecksums checksums({.run_id = 7, .shard = 1}, 1);
  checksums.seal(0, zeros.data(), block_bytes);
  std::vector<std::uint64_t> sums;
  for (const Generation generation : {Generation::Current, Generation::Next}) {
    for (std::uint64_t index = 0; index + 1 < pieces; ++index) {
      sums.push_back(checksums.sum(0, generation, index * piece, zeros.data(), piece));
    }
  }
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(std::adjacent_find(sums.begin(), sums.end()), sums.end());
}

}  // namespace
}  // namespace artesian::tiering
