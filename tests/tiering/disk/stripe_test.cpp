// Striping as arithmetic: every byte of every shard has one place, paths get bytes by their
// weights, files are filled from the front in the order of the shards. Weights and common rates
// follow from those of the disks.
#include "tiering/disk/stripe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "base/units.h"
#include "tests/support/process.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector = 4096;
constexpr std::uint64_t mebi = 1 << 20;

std::uint64_t end_of(const std::vector<Segment>& segments, std::size_t index, std::uint64_t bytes) {
  return index + 1 < segments.size() ? segments[index + 1].begin : bytes;
}

TEST(Striping, OnePathIsOneSegmentAfterTheOther) {
  Striping striping({.volumes = {{.paths = {0}, .weights = {1}}}, .paths = 1});
  std::uint64_t offset = 0;
  for (const std::uint64_t bytes : {100 * mebi, sector, 3 * mebi + sector}) {
    const auto segments = striping.place(0, bytes, mebi);
    ASSERT_EQ(segments.size(), 1u);
    EXPECT_EQ(segments[0].begin, 0u);
    EXPECT_EQ(segments[0].offset, offset);
    offset += bytes;
  }
  EXPECT_EQ(striping.payloads(), std::vector<std::uint64_t>{offset});
}

TEST(Striping, EqualWeightsTakeTurns) {
  Striping striping({.volumes = {{.paths = {0, 1}, .weights = {1, 1}}}, .paths = 2});
  const auto segments = striping.place(0, 5 * mebi, mebi);
  ASSERT_EQ(segments.size(), 5u);
  for (std::size_t index = 0; index < 5; ++index) {
    EXPECT_EQ(segments[index].begin, index * mebi);
    EXPECT_EQ(segments[index].path, index % 2);
    EXPECT_EQ(segments[index].offset, index / 2 * mebi);
  }
  EXPECT_EQ(striping.place(0, mebi, mebi)[0].path, 1u);  // the next shard continues there
}

TEST(Striping, VolumesShareAFileWithoutMeeting) {
  Striping striping(
      {.volumes = {{.paths = {0, 1}, .weights = {1, 1}}, {.paths = {1, 2}, .weights = {1, 1}}},
       .paths = 3});
  EXPECT_EQ(striping.place(0, 2 * mebi, mebi)[1].offset, 0u);
  const auto second = striping.place(1, 2 * mebi, mebi);
  EXPECT_EQ(second[0].path, 1u);
  EXPECT_EQ(second[0].offset, mebi);
  EXPECT_EQ(second[1].path, 2u);
  EXPECT_EQ(striping.payloads(), (std::vector<std::uint64_t>{mebi, 2 * mebi, mebi}));
}

/// Random shards over random paths: properties that hold for any numbers.
TEST(Striping, EveryByteHasOnePlaceAndEachPathItsShare) {
  std::mt19937_64 random(test_support::test_seed(41));
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const std::uint32_t paths = 1 + static_cast<std::uint32_t>(random() % 5);
    Volume volume;
    double whole = 0;
    for (std::uint32_t path = 0; path < paths; ++path) {
      volume.paths.push_back(path);
      volume.weights.push_back(static_cast<double>(1 + random() % 64) / 64);
      whole += volume.weights.back();
    }
    const std::uint64_t stripe = sector * (1 + random() % 64);
    Striping striping({.volumes = {volume}, .paths = paths, .stripe_bytes = stripe});
    std::vector<std::uint64_t> ends(paths, 0);
    std::uint64_t total = 0;
    std::uint64_t stripe_max = 0;
    for (int shard = 0; shard < 40; ++shard) {
      const std::uint64_t bytes = sector * (1 + random() % 500);
      const std::uint64_t block = sector * (1 + random() % 32);
      const std::uint64_t grain = std::max(block, round_down(stripe, block));
      stripe_max = std::max(stripe_max, std::min(grain, bytes));
      total += bytes;
      const auto segments = striping.place(0, bytes, block);
      ASSERT_EQ(segments[0].begin, 0u);
      for (std::size_t index = 0; index < segments.size(); ++index) {
        const Segment& segment = segments[index];
        EXPECT_EQ(segment.begin % grain, 0u);
        EXPECT_EQ(segment.offset, ends[segment.path]);  // from the front, without gaps
        ends[segment.path] += end_of(segments, index, bytes) - segment.begin;
        EXPECT_TRUE(index == 0 || segment.path != segments[index - 1].path);
      }
      EXPECT_EQ(striping.payloads(), ends);
    }
    for (std::uint32_t path = 0; path < paths; ++path) {
      const double share = volume.weights[path] / whole * static_cast<double>(total);
      const double off = std::abs(static_cast<double>(ends[path]) - share);
      EXPECT_LE(off, static_cast<double>(stripe_max * paths)) << "path " << path;
    }
  }
}

PathDisk disk(double read, double write, std::uint64_t device) {
  return {.speed = {.read_bytes_per_s = read, .write_bytes_per_s = write}, .device = device};
}

TEST(StripeWeights, AreEqualUnlessDisksAreKnownToDiffer) {
  using Weights = std::vector<double>;
  EXPECT_EQ(stripe_weights(std::vector{disk(0, 0, 1), disk(2e9, 2e9, 2)}), (Weights{1, 1}));
  EXPECT_EQ(stripe_weights(std::vector{disk(2e9, 1e9, 1), disk(1.9e9, 1e9, 2)}), (Weights{1, 1}));
  EXPECT_EQ(stripe_weights(std::vector{disk(4e9, 4e9, 1), disk(1e9, 1e9, 2)}), (Weights{1, 0.25}));
  // A byte read and a byte written take 1 ns + 1 ns on one disk, 0.5 ns + 3.5 ns on the other.
  EXPECT_EQ(stripe_weights(std::vector{disk(1e9, 1e9, 1), disk(2e9, 1e9 / 3.5, 2)}),
            (Weights{1, 0.5}));
  // However slow, it gets some bytes.
  EXPECT_EQ(stripe_weights(std::vector{disk(1e12, 1e12, 1), disk(1, 1, 2)}),
            (Weights{1, 1.0 / 64}));
}

TEST(StripeWeights, PathsOfOneDiskShareItsSpeed) {
  using Weights = std::vector<double>;
  const std::vector one{disk(3e9, 3e9, 1), disk(1e9, 1e9, 1)};  // measured one after the other
  EXPECT_EQ(stripe_weights(one), (Weights{1, 1}));
  const DiskSpeed both = striped_speed(one, stripe_weights(one));
  EXPECT_DOUBLE_EQ(both.read_bytes_per_s, 2e9);
  const std::vector three{disk(2e9, 2e9, 1), disk(2e9, 2e9, 1), disk(2e9, 2e9, 2)};
  EXPECT_EQ(stripe_weights(three), (Weights{0.5, 0.5, 1}));
  EXPECT_DOUBLE_EQ(striped_speed(three, stripe_weights(three)).write_bytes_per_s, 4e9);
}

TEST(StripeWeights, TogetherDisksAreAsFastAsTheOneThatIsLast) {
  const std::vector disks{disk(3e9, 2e9, 1), disk(1e9, 1e9, 2)};
  const std::vector<double> weights{1, 0.5};  // two thirds and one
  EXPECT_DOUBLE_EQ(striped_speed(disks, weights).read_bytes_per_s, 3e9);
  EXPECT_DOUBLE_EQ(striped_speed(disks, weights).write_bytes_per_s, 3e9);
  EXPECT_EQ(striped_speed(std::vector{disk(3e9, 2e9, 1), disk(0, 0, 2)}, weights).read_bytes_per_s,
            0);
}

}  // namespace
}  // namespace artesian::tiering
