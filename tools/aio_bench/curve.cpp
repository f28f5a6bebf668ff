#include "tools/aio_bench/curve.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace artesian::bench {
namespace {

constexpr int passes_min = 3;      // with fewer measurements a median is meaningless
constexpr double overhead = 0.02;  // seconds of a measurement beside its transfers

std::vector<Settings> settings_of(const CurveOptions& options) {
  std::vector<Settings> found;
  for (const std::uint64_t block : options.block_sizes) {
    Settings settings = options.chosen;
    settings.block_size = block;
    const bool chosen = block == options.chosen.block_size;
    if (chosen && options.known != nullptr) continue;
    if (chosen || settings.bytes_in_flight() <= options.bytes_in_flight_max) {
      found.push_back(settings);
    }
  }
  return found;
}

/// Returns the seconds that remain of this pass and of later passes.
double seconds_left(const CurveOptions& options, std::span<const double> costs,
                    std::span<const double> rest, double gone, int pass) {
  const auto known =
      costs.size() - static_cast<std::size_t>(std::count(costs.begin(), costs.end(), 0.0));
  const double usual =
      std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(known);
  const auto sum = [&](std::span<const double> some) {
    return std::accumulate(some.begin(), some.end(), 0.0, [&](double all, double cost) {
      return all + (cost > 0 ? cost : usual);
    });
  };
  double left = sum(rest);
  for (int next = pass + 1; next < options.passes; ++next) {
    if (next >= passes_min && gone + left + sum(costs) > options.seconds_max) break;
    left += sum(costs);
  }
  return left;
}

void add_known(const CurveOptions& options, std::vector<Point>& points) {
  if (options.known == nullptr) return;
  const auto at = std::find_if(points.begin(), points.end(), [&](const Point& point) {
    return point.settings.block_size > options.chosen.block_size;
  });
  points.insert(at, *options.known);
}

}  // namespace

double CurvePoint::gb_per_s() const {
  std::vector<double> rates;
  for (const Sample& sample : samples) rates.push_back(sample.gb_per_s);
  return median(std::move(rates));
}

double planned_seconds(const CurveOptions& options, double gb_per_s) {
  double pass = 0;
  for (const Settings& settings : settings_of(options)) {
    const double moved = 2 * static_cast<double>(settings.bytes_in_flight());  // a lower bound
    const double drain = gb_per_s > 0 ? moved / (gb_per_s * 1e9) : 0;
    pass +=
        static_cast<double>(std::size(accesses)) * (std::max(options.seconds, drain) + overhead);
  }
  int passes = std::min(options.passes, passes_min);
  while (passes < options.passes && (passes + 1) * pass <= options.seconds_max) ++passes;
  return passes * pass;
}

Result<std::vector<CurvePoint>> measure_curve(const CurveOptions& options, const Measure& measure) {
  std::vector<Point> points;
  for (const Settings& settings : settings_of(options)) {
    points.push_back({.settings = settings, .samples = {}});
  }
  // Seconds of each point's last measurement; 0: none yet.
  std::vector<double> costs(points.size());
  double gone = 0;
  for (int pass = 0; pass < options.passes; ++pass) {
    const double of_a_pass = std::accumulate(costs.begin(), costs.end(), 0.0);
    if (pass >= passes_min && gone + of_a_pass > options.seconds_max) break;
    for (std::size_t index = 0; index < points.size(); ++index) {
      const std::size_t at = pass % 2 == 0 ? index : points.size() - 1 - index;
      const double before = gone;
      for (const Access access : accesses) {
        ARTESIAN_TRY(got, measure(points[at].settings, access, options.seconds));
        gone += got.cost_seconds;
        points[at].samples[static_cast<std::size_t>(access)].push_back(got);
      }
      costs[at] = gone - before;
      const std::span<const double> rest =
          pass % 2 == 0 ? std::span(costs).subspan(at + 1) : std::span(costs).first(at);
      options.progress(points[at].settings, seconds_left(options, costs, rest, gone, pass));
    }
  }
  add_known(options, points);
  std::vector<CurvePoint> curve;
  for (const Point& point : points) {
    for (const Access access : accesses) {
      curve.push_back(
          {.block_size = point.settings.block_size, .access = access, .samples = point.of(access)});
    }
  }
  return curve;
}

}  // namespace artesian::bench
