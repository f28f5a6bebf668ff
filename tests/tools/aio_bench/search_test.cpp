// Proves that the search of `aio_bench tune` finds settings within 3% of the best of the whole
// grid, by the true rates of simulated disks, which it sees only through noise, drift and
// throttling. It stays within its budget, and reports disks that slow down.
#include "tools/aio_bench/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.h"

namespace artesian::bench {
namespace {

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;

SearchSpace whole_space() {
  return {
      .block_sizes = {64 * kib, 128 * kib, 256 * kib, 512 * kib, mib, 2 * mib, 4 * mib, 8 * mib},
      .queue_depths = {1, 2, 4, 8, 16, 32, 64, 128},
      .threads = {1, 2, 4},
      .engines = {aio::EngineKind::IoUring, aio::EngineKind::Threads},
      .bytes_in_flight_max = 256 * mib};
}

/// A simulated disk: true rates by settings, measurements of them, and time.
struct MadeUpDisk {
  virtual ~MadeUpDisk() = default;
  virtual double rate(const Settings& settings, Access access) const = 0;  // GB/s
  virtual double seen(double rate, Access) { return rate; }

  double score(const Settings& settings) const {
    double seconds = 0;
    for (const Access access : accesses) seconds += 1 / rate(settings, access);
    return 3 / seconds;
  }
  double noise() {  // normal, of deviation 1
    float value = 0;
    fill_normal({&value, 1}, seed, 0, draws++);
    return value;
  }
  Result<Sample> measure(const Settings& settings, Access access, double seconds) {
    const double cost = seconds + 0.01;
    const double got = seen(rate(settings, access), access);
    elapsed += cost;
    if (access != Access::Read) written += got * 1e9 * cost;
    ++measured;
    return Sample{.gb_per_s = std::max(got, 1e-3), .cost_seconds = cost};
  }

  std::uint64_t seed = 0;
  std::uint64_t draws = 0;
  std::uint64_t measured = 0;
  double elapsed = 0;
  double written = 0;
};

/// Rises with bytes in flight to a plateau, pays for each block, and falls where the caches end.
struct UsualDisk : MadeUpDisk {
  double rate(const Settings& settings, Access access) const override {
    const double peak = access == Access::Read ? 3.2 : access == Access::Write ? 1.6 : 2.1;
    const double latency = access == Access::Read ? 90e-6 : 60e-6;
    const auto block = static_cast<double>(settings.block_size);
    const auto in_flight = static_cast<double>(settings.bytes_in_flight());
    double got = std::min(peak, in_flight / (latency + block / 2e9) * 1e-9);
    got /= 1 + 6e3 / block * got;  // CPU of a block
    if (in_flight > 40e6) got *= 1 - 0.05 * std::log2(in_flight / 40e6);
    if (settings.engine == aio::EngineKind::Threads) got *= 0.93;
    if (settings.single_submit) got *= 0.98;
    if (!settings.overlap_events) got *= 0.9;
    return got;
  }
};

struct NoisyDisk : UsualDisk {
  double seen(double rate, Access) override { return rate * (1 + 0.05 * noise()); }
};

/// Falls to 60% after half of the time, and fluctuates.
struct ThrottledDisk : UsualDisk {
  double seen(double rate, Access) override {
    return rate * (elapsed < 30 ? 1 : 0.6) * (1 + 0.02 * noise());
  }
};

struct DriftingDisk : UsualDisk {
  double seen(double rate, Access) override {
    return rate * (1 + 0.15 * std::sin(elapsed / 7)) * (1 + 0.02 * noise());
  }
};

/// All settings with enough bytes in flight are the same.
struct PlateauDisk : MadeUpDisk {
  double rate(const Settings& settings, Access) const override {
    return std::min(2.0, static_cast<double>(settings.bytes_in_flight()) / 2e6);
  }
  double seen(double rate, Access) override { return rate * (1 + 0.03 * noise()); }
};

/// One thread cannot have enough in flight: only threads and depth together reach the peak.
struct DepthLimitedDisk : MadeUpDisk {
  double rate(const Settings& settings, Access) const override {
    const auto blocks = static_cast<double>(settings.queue_depth) * settings.threads;
    const double per_block = 256e3 / (250e-6) * 1e-9;
    const double oversize = static_cast<double>(settings.block_size) > 300e3 ? 0.8 : 1.0;
    const double undersize = std::min(1.0, static_cast<double>(settings.block_size) / 256e3);
    return std::min(7.0, blocks * per_block * undersize) * oversize / (1 + blocks / 5000);
  }
  double seen(double rate, Access) override { return rate * (1 + 0.02 * noise()); }
};

/// The peak lies on a ridge of block size x depth, off the axes of the start.
struct RidgeDisk : MadeUpDisk {
  double rate(const Settings& settings, Access) const override {
    const double block = std::log2(static_cast<double>(settings.block_size) / (128.0 * kib));
    const double depth = std::log2(static_cast<double>(settings.queue_depth) / 64.0);
    const double across = block + depth;
    const double along = block - depth;
    return 4 * std::exp(-0.06 * across * across - 0.008 * along * along);
  }
  double seen(double rate, Access) override { return rate * (1 + 0.02 * noise()); }
};

/// Writes slow down once 20 GB are written; reads do not.
struct SmallCacheDisk : UsualDisk {
  double seen(double rate, Access access) override {
    const bool full = written > 20e9;
    return rate * (full && access != Access::Read ? 0.5 : 1) * (1 + 0.02 * noise());
  }
};

/// The threads engine, which `auto` does not take, is this much faster.
struct OddDisk : UsualDisk {
  double rate(const Settings& settings, Access access) const override {
    Settings usual = settings;
    usual.engine = aio::EngineKind::IoUring;
    const bool odd = settings.engine != usual.engine;
    return UsualDisk::rate(usual, access) * (odd ? gain : 1);
  }
  double gain = 1;
};

template <typename Disk>
class Search : public testing::Test {};

SearchResult run(MadeUpDisk& disk, double budget_seconds, const SearchSpace& space) {
  SearchOptions options{.space = space, .start = {}, .budget_seconds = budget_seconds};
  auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
    return disk.measure(settings, access, seconds);
  });
  EXPECT_TRUE(result.has_value());
  return std::move(result).value();
}

double best_of_grid(const MadeUpDisk& disk, const SearchSpace& space) {
  double best = 0;
  for (const auto block : space.block_sizes) {
    for (const auto depth : space.queue_depths) {
      for (const auto threads : space.threads) {
        for (const auto engine : space.engines) {
          const Settings settings{
              .block_size = block, .queue_depth = depth, .threads = threads, .engine = engine};
          if (settings.bytes_in_flight() > space.bytes_in_flight_max) continue;
          best = std::max(best, disk.score(settings));
        }
      }
    }
  }
  return best;
}

using Disks = testing::Types<UsualDisk, NoisyDisk, ThrottledDisk, DriftingDisk, PlateauDisk,
                             DepthLimitedDisk, RidgeDisk, SmallCacheDisk>;
TYPED_TEST_SUITE(Search, Disks);

TYPED_TEST(Search, FindsWithinThreePercentOfTheGrid) {
  const SearchSpace space = whole_space();
  const double best = best_of_grid(TypeParam{}, space);
  int misses = 0;
  double worst = 1;
  double longest = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    TypeParam disk;
    disk.seed = seed;
    const SearchResult result = run(disk, 60, space);
    const double share = disk.score(result.winner.settings) / best;
    worst = std::min(worst, share);
    longest = std::max(longest, disk.elapsed);
    misses += share < 0.97;
    EXPECT_GT(share, 0.93) << "seed " << seed << ": " << describe(result.winner.settings);
    EXPECT_LT(disk.elapsed, 85) << "seed " << seed;
    EXPECT_NEAR(result.seconds, disk.elapsed, 1e-6);
    EXPECT_GE(result.head_to_head.size(), 7u);
  }
  std::printf("worst %.4f of the grid's best, %d of 40 below 0.97, at most %.1f s\n", worst, misses,
              longest);
  EXPECT_LE(misses, 1);
}

TEST(SearchResult, HasTheHeadToHeadAndEveryPoint) {
  UsualDisk disk;
  const SearchResult result = run(disk, 60, whole_space());
  for (const Access access : accesses) {
    EXPECT_EQ(result.winner.of(access).size(), result.head_to_head.size());
    EXPECT_EQ(result.runner_up.of(access).size(), result.head_to_head.size());
  }
  EXPECT_GE(median(result.head_to_head), 0.995);
  std::uint64_t samples = 0;
  for (const Point& point : result.points) {
    for (const Access access : accesses) samples += point.of(access).size();
    EXPECT_EQ(std::count_if(result.points.begin(), result.points.end(),
                            [&](const Point& other) { return other.settings == point.settings; }),
              1);
  }
  EXPECT_EQ(samples, disk.measured);
}

TEST(SearchResult, SaysWhatItIsWorthOverTheDefaults) {
  UsualDisk disk;
  SearchOptions options{.space = whole_space(),
                        .start = {},
                        .defaults = Settings{.block_size = 128 * kib, .queue_depth = 1}};
  auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
    return disk.measure(settings, access, seconds);
  });
  ASSERT_TRUE(result.has_value());
  const double expected = disk.score(result->winner.settings) / disk.score(*options.defaults);
  EXPECT_GT(expected, 1.1);
  EXPECT_NEAR(result->over_defaults, expected, 1e-6);
  EXPECT_EQ(run(disk, 60, whole_space()).over_defaults, 0) << "where nobody asks";
}

TEST(SearchResult, IsTheSameForTheSameDisk) {
  NoisyDisk one;
  NoisyDisk other;
  one.seed = other.seed = 3;
  const SearchResult first = run(one, 60, whole_space());
  const SearchResult second = run(other, 60, whole_space());
  EXPECT_EQ(first.winner.settings, second.winner.settings);
  EXPECT_EQ(first.head_to_head, second.head_to_head);
}

TEST(SearchResult, TakesAnotherEngineOnlyWhereThatWinsByMoreThanOnePercent) {
  for (const bool exhaustive : {false, true}) {
    for (const double gain : {0.994, 0.999, 1.004, 1.009, 1.02}) {
      OddDisk disk;
      disk.gain = gain;
      SearchSpace space = whole_space();
      space.threads = {1};
      SearchOptions options{.space = space, .start = {}, .exhaustive = exhaustive};
      auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
        return disk.measure(settings, access, seconds);
      });
      ASSERT_TRUE(result.has_value());
      const auto expected = gain > 1.01 ? aio::EngineKind::Threads : aio::EngineKind::IoUring;
      EXPECT_EQ(result->winner.settings.engine, expected)
          << gain << (exhaustive ? ", the whole grid" : "");
    }
  }
}

TEST(SearchResult, OfAnExhaustiveSearchHasMeasuredAll) {
  UsualDisk disk;
  SearchOptions options{.space = whole_space(), .start = {}, .exhaustive = true};
  auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
    return disk.measure(settings, access, seconds);
  });
  ASSERT_TRUE(result.has_value());
  std::size_t settings = 0;
  for (const auto block : options.space.block_sizes) {
    for (const auto depth : options.space.queue_depths) {
      for (const auto threads : options.space.threads) {
        settings += 2 * (block * depth * threads <= options.space.bytes_in_flight_max);
      }
    }
  }
  EXPECT_EQ(result->points.size(), settings);
  EXPECT_NEAR(planned_seconds(options) / result->seconds, 1, 0.1);
  EXPECT_NEAR(disk.score(result->winner.settings) / best_of_grid(disk, options.space), 1, 0.005);
}

TEST(SearchResult, KeepsToTheSpaceAndItsLimit) {
  SearchSpace space = whole_space();
  space.bytes_in_flight_max = 32 * mib;
  space.threads = {1};
  space.engines = {aio::EngineKind::Threads};
  UsualDisk disk;
  SearchOptions options{
      .space = space, .start = {.engine = aio::EngineKind::Threads}, .budget_seconds = 10};
  auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
    EXPECT_LE(settings.bytes_in_flight(), 32 * mib);
    EXPECT_EQ(settings.threads, 1u);
    EXPECT_EQ(settings.engine, aio::EngineKind::Threads);
    return disk.measure(settings, access, seconds);
  });
  ASSERT_TRUE(result.has_value());
}

TEST(SearchResult, OfOnePointIsThatPoint) {
  const SearchSpace space{.block_sizes = {mib},
                          .queue_depths = {32},
                          .threads = {1},
                          .engines = {aio::EngineKind::IoUring},
                          .bytes_in_flight_max = 32 * mib};
  UsualDisk disk;
  EXPECT_EQ(run(disk, 2, space).winner.settings.block_size, mib);
}

TEST(SearchResult, OfASlowDiskStaysWithinItsTime) {
  struct SlowDisk : UsualDisk {
    double rate(const Settings& settings, Access access) const override {
      return UsualDisk::rate(settings, access) / 40;
    }
  } disk;
  SearchOptions options{.space = whole_space(), .start = {}, .budget_seconds = 60};
  std::vector<std::pair<double, double>> said;  // gone, left
  options.progress = [&](const SearchProgress& now) {
    said.push_back({disk.elapsed, now.seconds_left});
  };
  auto result = search(options, [&](const Settings& settings, Access access, double seconds) {
    const double drain =
        2 * static_cast<double>(settings.bytes_in_flight()) / (disk.rate(settings, access) * 1e9);
    return disk.measure(settings, access, std::max(seconds, drain));
  });
  ASSERT_TRUE(result.has_value());
  EXPECT_LT(disk.elapsed, 240);
  EXPECT_LE(result->bytes_in_flight_max, 8 * mib) << "of whatever is measured after it, too";
  ASSERT_GT(said.size(), 100u);
  for (const auto& [elapsed, left] : said) {
    if (elapsed < disk.elapsed / 5) continue;  // what a map of a disk takes shows when it is made
    const double rest = disk.elapsed - elapsed;
    EXPECT_GT(left, 0.4 * rest - 2) << elapsed;
    EXPECT_LT(left, 2.5 * rest + 2) << elapsed;
  }
}

TEST(SearchResult, IsTheFirstErrorOfAMeasurement) {
  UsualDisk disk;
  SearchOptions options{.space = whole_space(), .start = {}};
  auto result = search(
      options, [&](const Settings& settings, Access access, double seconds) -> Result<Sample> {
        if (disk.measured == 50) return make_error(ErrorCode::Cancelled, "stopped by a signal");
        return disk.measure(settings, access, seconds);
      });
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::Cancelled);
  EXPECT_EQ(disk.measured, 50u);
}

TEST(Describe, NamesEachNumberWhereThereIsRoom) {
  EXPECT_EQ(describe_at_length({.block_size = 512 * kib, .queue_depth = 4}),
            "512 KiB blocks, depth 4, 1 thread, io_uring");
  EXPECT_EQ(describe_at_length({.block_size = 2 * mib, .threads = 2, .single_submit = true}),
            "2 MiB blocks, depth 32, 2 threads, io_uring, single_submit");
}

TEST(DriftWarnings, TellThrottlingFromASmallWriteCache) {
  ThrottledDisk throttled;
  const auto both = drift_warnings(run(throttled, 60, whole_space()).drift, throttled.written);
  ASSERT_EQ(both.size(), 1u);
  EXPECT_NE(both[0].find("throttled"), both[0].npos) << both[0];
  SmallCacheDisk small;
  const auto writes = drift_warnings(run(small, 60, whole_space()).drift, small.written);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_NE(writes[0].find("SLC"), writes[0].npos) << writes[0];
  NoisyDisk noisy;
  EXPECT_TRUE(drift_warnings(run(noisy, 60, whole_space()).drift, noisy.written).empty());
}

}  // namespace
}  // namespace artesian::bench
