// Proves that the curve by block size does not depend on single measurements: it has medians of
// several passes in both directions, and takes the search's figures for the chosen block. A slow
// disk gets fewer passes, and no queue that takes longer to drain than to measure. The announced
// time is right.
#include "tools/aio_bench/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace artesian::bench {
namespace {

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;

/// Every seventh measurement is a third of its true value. Requests in flight drain twice.
struct OutlyingDisk {
  double rate = 2;
  int measured = 0;
  double elapsed = 0;
  std::map<std::uint64_t, int> by_block = {};
  std::vector<std::uint64_t> order = {};

  Result<Sample> operator()(const Settings& settings, Access access, double seconds) {
    const double drain = 2 * static_cast<double>(settings.bytes_in_flight()) / (rate * 1e9);
    const double cost = std::max(seconds, drain) + 0.02;
    elapsed += cost;
    ++by_block[settings.block_size];
    if (access == Access::Read) order.push_back(settings.block_size);
    return Sample{.gb_per_s = rate / (measured++ % 7 == 6 ? 3 : 1), .cost_seconds = cost};
  }
};

CurveOptions usual() {
  return {.block_sizes = {128 * kib, 256 * kib, 512 * kib, mib, 2 * mib},
          .chosen = {.block_size = 512 * kib, .queue_depth = 16},
          .bytes_in_flight_max = 64 * mib,
          .seconds = 0.1,
          .seconds_max = 60};
}

Point winner_of(const CurveOptions& options) {
  Point point{.settings = options.chosen, .samples = {}};
  for (auto& samples : point.samples) samples.assign(7, Sample{.gb_per_s = 9, .cost_seconds = 0.1});
  return point;
}

TEST(Curve, IsOfMediansThereAndBack) {
  OutlyingDisk disk;
  const CurveOptions options = usual();
  const auto curve = measure_curve(options, std::ref(disk));
  ASSERT_TRUE(curve.has_value());
  ASSERT_EQ(curve->size(), 15u);
  for (std::size_t index = 0; index < curve->size(); ++index) {
    const CurvePoint& point = (*curve)[index];
    EXPECT_EQ(point.block_size, options.block_sizes[index / 3]);
    EXPECT_EQ(point.access, accesses[index % 3]);
    EXPECT_EQ(point.samples.size(), 5u);
    EXPECT_EQ(point.gb_per_s(), 2) << index;
  }
  ASSERT_EQ(disk.order.size(), 25u);
  EXPECT_TRUE(std::equal(disk.order.begin(), disk.order.begin() + 5, disk.order.begin() + 10));
  EXPECT_TRUE(std::equal(disk.order.begin(), disk.order.begin() + 5, disk.order.rbegin() + 15));
  EXPECT_NEAR(planned_seconds(options, disk.rate), disk.elapsed, 0.01);
}

TEST(Curve, HasWhatIsKnownOfTheChosenBlock) {
  OutlyingDisk disk;
  CurveOptions options = usual();
  const Point known = winner_of(options);
  options.known = &known;
  const auto curve = measure_curve(options, std::ref(disk));
  ASSERT_TRUE(curve.has_value());
  ASSERT_EQ(curve->size(), 15u);
  EXPECT_EQ(disk.by_block.count(512 * kib), 0u);
  for (const CurvePoint& point : *curve) {
    EXPECT_EQ(point.gb_per_s(), point.block_size == 512 * kib ? 9 : 2);
  }
  EXPECT_TRUE(std::is_sorted(curve->begin(), curve->end(),
                             [](const CurvePoint& one, const CurvePoint& two) {
                               return one.block_size < two.block_size;
                             }));
}

TEST(Curve, OfASlowDiskLeavesOutQueuesThatTakeLongToDrain) {
  OutlyingDisk disk{.rate = 0.05};
  CurveOptions options = usual();
  options.bytes_in_flight_max = 4 * mib;  // 512 KiB x 16 is more, and chosen
  options.seconds_max = 3;
  const auto curve = measure_curve(options, std::ref(disk));
  ASSERT_TRUE(curve.has_value());
  EXPECT_EQ(disk.by_block.size(), 3u);
  EXPECT_EQ(disk.by_block.rbegin()->first, 512 * kib);
  for (const CurvePoint& point : *curve) EXPECT_EQ(point.samples.size(), 3u);
  EXPECT_NEAR(planned_seconds(options, disk.rate), disk.elapsed, 0.01);
}

TEST(Curve, SaysWhatIsLeft) {
  for (const double rate : {2.0, 0.05}) {
    OutlyingDisk disk{.rate = rate};
    CurveOptions options = usual();
    std::vector<std::pair<double, double>> said;  // elapsed, left
    options.progress = [&](const Settings&, double left) { said.push_back({disk.elapsed, left}); };
    ASSERT_TRUE(measure_curve(options, std::ref(disk)).has_value());
    EXPECT_EQ(said.back().second, 0);
    for (const auto& [elapsed, left] : said) {
      if (elapsed < disk.elapsed / 5) continue;  // of the first pass
      EXPECT_NEAR(left, disk.elapsed - elapsed, 0.01) << elapsed;
    }
  }
}

TEST(Curve, EndsWithTheFirstErrorOfAMeasurement) {
  const auto curve = measure_curve(usual(), [](const Settings&, Access, double) -> Result<Sample> {
    return make_error(ErrorCode::Cancelled, "stopped by a signal");
  });
  ASSERT_FALSE(curve.has_value());
  EXPECT_EQ(curve.error().code, ErrorCode::Cancelled);
}

}  // namespace
}  // namespace artesian::bench
