#include "tools/aio_bench/search.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.h"

namespace artesian::bench {
namespace {

constexpr double measurements_planned = 400;
constexpr double variation_share = 0.68;  // share of the budget used before the finals
constexpr int grid_passes = 2;
constexpr int head_to_head_min = 7;
constexpr int head_to_head_max = 15;
constexpr std::size_t finalists_max = 4;
constexpr int finalist_passes = 3;
constexpr int reference_repeats = 3;
constexpr double in_flight_min = 8 << 20;  // limit of bytes in flight that is always allowed
constexpr double convention = 0.01;        // gain that another engine or an unusual switch needs
// Scores this close are equal: the settings with fewer bytes in flight win.
constexpr double tie = 0.005;
constexpr double fallen = 0.85;  // share of its first rate below which a disk counts as slowed down

template <typename T>
std::vector<T> every_second(const std::vector<T>& values, const T& always) {
  std::vector<T> taken;
  for (std::size_t index = 0; index < values.size(); ++index) {
    if (index % 2 == 1 || values.size() < 3 || values[index] == always) {
      taken.push_back(values[index]);
    }
  }
  return taken;
}

/// The values at most two steps away.
template <typename T>
std::vector<T> near(const std::vector<T>& values, const T& centre) {
  const auto found = std::find(values.begin(), values.end(), centre);
  const auto at = found - values.begin();
  std::vector<T> taken;
  for (std::ptrdiff_t index = 0; index < std::ssize(values); ++index) {
    if (std::abs(index - at) <= 2) taken.push_back(values[static_cast<std::size_t>(index)]);
  }
  return taken;
}

bool allowed(const SearchOptions& options, const Settings& settings, std::uint64_t in_flight_max) {
  return settings.bytes_in_flight() <= in_flight_max || settings == options.start;
}

std::vector<Settings> whole_grid(const SearchOptions& options) {
  const SearchSpace& space = options.space;
  std::vector<Settings> grid;
  for (const std::uint64_t block : space.block_sizes) {
    for (const std::uint32_t depth : space.queue_depths) {
      for (const std::uint32_t threads : space.threads) {
        for (const aio::EngineKind engine : space.engines) {
          const Settings settings{
              .block_size = block, .queue_depth = depth, .threads = threads, .engine = engine};
          if (allowed(options, settings, space.bytes_in_flight_max)) grid.push_back(settings);
        }
      }
    }
  }
  return grid;
}

class Search {
 public:
  Search(const SearchOptions& options, const Measure& measure)
      : options_(options),
        measure_(measure),
        seconds_(seconds_per_measurement(options.budget_seconds)),
        current_(options.start) {}

  Result<SearchResult> run();

 private:
  using Points = std::vector<Point>;

  bool allowed(const Settings& settings) const {
    return bench::allowed(options_, settings, in_flight_max_);
  }
  bool time_left() const { return spent_ < variation_share * options_.budget_seconds; }
  double seconds_left() const {
    const double each = spent_ / static_cast<double>(measured_);
    return std::max(options_.budget_seconds - spent_, static_cast<double>(due_) * each);
  }
  void plan(std::size_t points, int passes) { due_ += points * std::size(accesses) * passes; }
  Result<void> sample(Point& point, Access access);
  Result<void> sample_all(Point& point);
  Result<void> passes(Points& points, int count);
  void keep(const Points& points);
  Result<void> reference(double& read, double& write);
  Result<void> map();
  Result<void> grid();
  Result<void> vary_all();
  Result<void> choose(const char* stage, const std::vector<Settings>& candidates, double margin);
  Result<void> trade();
  template <typename Value>
  Result<void> vary(const char* stage, Value Settings::*member, const std::vector<Value>& values,
                    double margin = 0);
  int oddities(const Settings& settings) const;
  const Point& opponent(const Points& ranked) const;
  double least_to_win(const Settings& first, const Settings& second) const;
  Points finalists() const;
  Result<void> finals(SearchResult& result);

  const SearchOptions& options_;
  const Measure& measure_;
  const double seconds_;  // length of one measurement
  std::uint64_t in_flight_max_ = 0;
  Settings current_;
  Points all_;
  double spent_ = 0;
  std::uint64_t measured_ = 0;
  std::uint64_t due_ = 0;  // required measurements still to come, whatever the budget
  const char* stage_ = "";
};

Result<void> Search::sample(Point& point, Access access) {
  ARTESIAN_TRY(got, measure_(point.settings, access, seconds_));
  spent_ += got.cost_seconds;
  ++measured_;
  due_ -= std::min<std::uint64_t>(due_, 1);
  point.samples[static_cast<std::size_t>(access)].push_back(got);
  options_.progress({.stage = stage_,
                     .seconds = spent_,
                     .seconds_left = seconds_left(),
                     .settings = &point.settings,
                     .access = access,
                     .gb_per_s = got.gb_per_s});
  return {};
}

Result<void> Search::sample_all(Point& point) {
  for (const Access access : accesses) ARTESIAN_TRY_VOID(sample(point, access));
  return {};
}

/// Measures each point `count` times, in alternating order.
Result<void> Search::passes(Points& points, int count) {
  for (int pass = 0; pass < count; ++pass) {
    for (Point& point : points) ARTESIAN_TRY_VOID(sample_all(point));
    std::reverse(points.begin(), points.end());
  }
  return {};
}

void Search::keep(const Points& points) {
  for (const Point& point : points) {
    auto known = std::find_if(all_.begin(), all_.end(),
                              [&](const Point& other) { return other.settings == point.settings; });
    if (known == all_.end()) {
      all_.push_back(point);
      continue;
    }
    for (std::size_t access = 0; access < point.samples.size(); ++access) {
      auto& target = known->samples[access];
      target.insert(target.end(), point.samples[access].begin(), point.samples[access].end());
    }
  }
}

const Point& best_of(const std::vector<Point>& points) {
  return *std::max_element(points.begin(), points.end(), [](const Point& left, const Point& right) {
    return left.score() < right.score();
  });
}

Result<void> Search::reference(double& read, double& write) {
  Point point{.settings = options_.start, .samples = {}};
  for (int repeat = 0; repeat < reference_repeats; ++repeat) ARTESIAN_TRY_VOID(sample_all(point));
  read = point.gb_per_s(Access::Read);
  write = point.gb_per_s(Access::Write);
  keep({point});
  return {};
}

Result<void> Search::map() {
  stage_ = "map";
  Points points;
  for (const std::uint64_t block : every_second(options_.space.block_sizes, current_.block_size)) {
    for (const std::uint32_t depth :
         every_second(options_.space.queue_depths, current_.queue_depth)) {
      Settings settings = current_;
      settings.block_size = block;
      settings.queue_depth = depth;
      if (allowed(settings)) points.push_back({.settings = settings, .samples = {}});
    }
  }
  plan(points.size(), 1);
  ARTESIAN_TRY_VOID(passes(points, 1));
  keep(points);
  current_ = best_of(points).settings;
  return {};
}

/// Measures these settings and adopts the best of them if it beats the current ones by more than
/// `margin`.
Result<void> Search::choose(const char* stage, const std::vector<Settings>& candidates,
                            double margin) {
  if (!time_left()) return {};
  stage_ = stage;
  Points points;
  for (const Settings& settings : candidates) {
    if (settings == current_ || allowed(settings)) {
      points.push_back({.settings = settings, .samples = {}});
    }
  }
  if (points.size() < 2) return {};
  plan(points.size(), 2);
  ARTESIAN_TRY_VOID(passes(points, 2));
  keep(points);
  const auto now = std::find_if(points.begin(), points.end(),
                                [&](const Point& point) { return point.settings == current_; });
  const Point& best = best_of(points);
  const bool stays = now != points.end() && best.score() <= now->score() * (1 + margin);
  if (!stays) current_ = best.settings;
  return {};
}

template <typename Value>
Result<void> Search::vary(const char* stage, Value Settings::*member,
                          const std::vector<Value>& values, double margin) {
  std::vector<Settings> candidates;
  for (const Value& value : values) {
    Settings& settings = candidates.emplace_back(current_);
    settings.*member = value;
  }
  return choose(stage, candidates, margin);
}

/// Tries larger blocks with less depth, and smaller blocks with more: along the ridge.
Result<void> Search::trade() {
  std::vector<Settings> candidates;
  for (const std::uint64_t block : options_.space.block_sizes) {
    for (const std::uint32_t depth : options_.space.queue_depths) {
      if (block * depth != current_.block_size * current_.queue_depth) continue;
      Settings& settings = candidates.emplace_back(current_);
      settings.block_size = block;
      settings.queue_depth = depth;
    }
  }
  return choose("block size for depth", candidates, 0);
}

Result<void> Search::vary_all() {
  const SearchSpace& space = options_.space;
  ARTESIAN_TRY_VOID(vary("block size", &Settings::block_size, space.block_sizes));
  ARTESIAN_TRY_VOID(vary("queue depth", &Settings::queue_depth, space.queue_depths));
  ARTESIAN_TRY_VOID(trade());
  ARTESIAN_TRY_VOID(vary("threads", &Settings::threads, space.threads));
  ARTESIAN_TRY_VOID(vary("engine", &Settings::engine, space.engines, convention));
  ARTESIAN_TRY_VOID(
      vary("queue depth", &Settings::queue_depth, near(space.queue_depths, current_.queue_depth)));
  ARTESIAN_TRY_VOID(
      vary("block size", &Settings::block_size, near(space.block_sizes, current_.block_size)));
  ARTESIAN_TRY_VOID(
      vary<bool>("single_submit", &Settings::single_submit, {false, true}, convention));
  return vary<bool>("overlap_events", &Settings::overlap_events, {true, false}, convention);
}

Result<void> Search::grid() {
  stage_ = "grid";
  Points points;
  for (const Settings& settings : whole_grid(options_)) {
    points.push_back({.settings = settings, .samples = {}});
  }
  plan(points.size(), grid_passes);
  ARTESIAN_TRY_VOID(passes(points, grid_passes));
  keep(points);
  current_ = best_of(points).settings;
  return {};
}

/// Number of settings that differ from the usual ones.
int Search::oddities(const Settings& settings) const {
  const Settings& usual = options_.start;
  return (settings.engine != usual.engine) + (settings.single_submit != usual.single_submit) +
         (settings.overlap_events != usual.overlap_events);
}

/// Returns the settings found, the same with usual values, and the best of all measured settings.
std::vector<Point> Search::finalists() const {
  Points seen = all_;
  std::stable_sort(seen.begin(), seen.end(), [](const Point& left, const Point& right) {
    return left.score() > right.score();
  });
  Points chosen{{.settings = current_, .samples = {}}};
  const auto choose = [&](const Settings& settings) {
    const bool known = std::any_of(chosen.begin(), chosen.end(),
                                   [&](const Point& point) { return point.settings == settings; });
    if (!known && chosen.size() < finalists_max) {
      chosen.push_back({.settings = settings, .samples = {}});
    }
  };
  Settings usual = current_;
  usual.engine = options_.start.engine;
  usual.single_submit = options_.start.single_submit;
  usual.overlap_events = options_.start.overlap_events;
  choose(usual);
  for (const Point& point : seen) choose(point.settings);
  const auto is_default = [&](const Point& point) { return point.settings == options_.defaults; };
  if (options_.defaults && std::none_of(chosen.begin(), chosen.end(), is_default) &&
      options_.defaults->bytes_in_flight() <= options_.space.bytes_in_flight_max) {
    chosen.push_back({.settings = *options_.defaults, .samples = {}});
  }
  return chosen;
}

/// The opponent of the first settings: the best of the more usual ones that are within the required
/// gain; else the next best.
const Point& Search::opponent(const Points& ranked) const {
  const Point& first = ranked.front();
  for (const Point& each : ranked) {
    const bool close = each.score() * (1 + convention) >= first.score();
    if (close && oddities(each.settings) < oddities(first.settings)) return each;
  }
  return ranked[ranked.size() > 1 ? 1 : 0];
}

/// The ratio of the first's score to the second's below which the second one wins.
double Search::least_to_win(const Settings& first, const Settings& second) const {
  const int odder = oddities(first) - oddities(second);
  if (odder > 0) return 1 + convention;
  if (odder < 0) return 1 / (1 + convention);
  return second.bytes_in_flight() < first.bytes_in_flight() ? 1 + tie : 1 - tie;
}

Result<void> Search::finals(SearchResult& result) {
  stage_ = "finalists";
  Points points = finalists();
  due_ = 0;
  plan(points.size(), finalist_passes);
  plan(2, head_to_head_min);
  plan(1, reference_repeats);
  ARTESIAN_TRY_VOID(passes(points, finalist_passes));
  keep(points);
  std::stable_sort(points.begin(), points.end(), [](const Point& left, const Point& right) {
    return left.score() > right.score();
  });
  stage_ = "head to head";
  Point first{.settings = points.front().settings, .samples = {}};
  Point second{.settings = opponent(points).settings, .samples = {}};
  for (int pair = 0; pair < head_to_head_max; ++pair) {
    if (pair >= head_to_head_min && spent_ >= options_.budget_seconds) break;
    if (pair >= head_to_head_min) plan(2, 1);
    Point left{.settings = first.settings, .samples = {}};
    Point right{.settings = second.settings, .samples = {}};
    // For each access, beginning alternately, so that both see the same disk.
    for (const Access access : accesses) {
      ARTESIAN_TRY_VOID(sample(pair % 2 == 0 ? left : right, access));
      ARTESIAN_TRY_VOID(sample(pair % 2 == 0 ? right : left, access));
    }
    result.head_to_head.push_back(left.score() / std::max(right.score(), 1e-12));
    for (std::size_t access = 0; access < left.samples.size(); ++access) {
      first.samples[access].push_back(left.samples[access].front());
      second.samples[access].push_back(right.samples[access].front());
    }
  }
  keep({first, second});
  const double ratio = median(result.head_to_head);
  if (ratio < least_to_win(first.settings, second.settings)) {
    std::swap(first, second);
    for (double& each : result.head_to_head) each = 1 / std::max(each, 1e-12);
  }
  const auto score_of = [&](const std::optional<Settings>& settings) {
    const auto found = std::find_if(points.begin(), points.end(),
                                    [&](const Point& point) { return point.settings == settings; });
    return found == points.end() ? 0 : found->score();
  };
  const double by_default = score_of(options_.defaults);
  if (by_default > 0) result.over_defaults = score_of(first.settings) / by_default;
  result.winner = std::move(first);
  result.runner_up = std::move(second);
  return {};
}

Result<SearchResult> Search::run() {
  SearchResult result;
  in_flight_max_ = options_.space.bytes_in_flight_max;
  stage_ = "reference";
  plan(2, reference_repeats);
  plan(finalists_max, finalist_passes);
  plan(2, head_to_head_min);
  ARTESIAN_TRY_VOID(reference(result.drift.read_first, result.drift.write_first));
  // With a queue that takes longer to drain than half a measurement, the measurement would only
  // measure the queue.
  const double rate = std::max(result.drift.read_first, result.drift.write_first);
  const std::uint64_t drained = bytes_drained(rate, seconds_);
  result.bytes_in_flight_max = std::min(in_flight_max_, drained);
  if (options_.exhaustive) {
    ARTESIAN_TRY_VOID(grid());
  } else {
    in_flight_max_ = result.bytes_in_flight_max;
    ARTESIAN_TRY_VOID(map());
    ARTESIAN_TRY_VOID(vary_all());
  }
  ARTESIAN_TRY_VOID(finals(result));
  stage_ = "reference";
  ARTESIAN_TRY_VOID(reference(result.drift.read_last, result.drift.write_last));
  result.points = std::move(all_);
  result.seconds = spent_;
  return result;
}

}  // namespace

aio::EngineOptions engine_options(const Settings& settings) noexcept {
  return {.block_size = settings.block_size,
          .queue_depth = settings.queue_depth,
          .threads = settings.threads,
          .single_submit = settings.single_submit,
          .overlap_events = settings.overlap_events,
          .polling = settings.polling};
}

namespace {

std::string oddities_of(const Settings& settings) {
  std::string text;
  if (settings.single_submit) text += ", single_submit";
  if (!settings.overlap_events) text += ", no overlap_events";
  return text;
}

}  // namespace

std::string describe(const Settings& settings) {
  return fmt::format("{} x {} x {}, {}{}", format_size(settings.block_size), settings.queue_depth,
                     settings.threads, engine_kind_name(settings.engine), oddities_of(settings));
}

std::string describe_at_length(const Settings& settings) {
  const std::uint64_t block = settings.block_size;
  const std::string size = block % (1 << 20) == 0 ? fmt::format("{} MiB", block >> 20)
                                                  : fmt::format("{} KiB", block >> 10);
  // Formats "1 thread, engine threads".
  const bool threads = settings.engine == aio::EngineKind::Threads;
  return fmt::format("{} blocks, depth {}, {} {}, {}{}{}", size, settings.queue_depth,
                     settings.threads, settings.threads == 1 ? "thread" : "threads",
                     threads ? "engine " : "", engine_kind_name(settings.engine),
                     oddities_of(settings));
}

double Point::gb_per_s(Access access) const {
  std::vector<double> rates;
  for (const Sample& sample : of(access)) rates.push_back(sample.gb_per_s);
  return median(std::move(rates));
}

double Point::score() const {
  double seconds = 0;
  for (const Access access : accesses) seconds += 1 / std::max(gb_per_s(access), 1e-12);
  return static_cast<double>(std::size(accesses)) / seconds;
}

double seconds_per_measurement(double budget_seconds) noexcept {
  return std::clamp(budget_seconds / measurements_planned, 0.002, 0.5);
}

std::uint64_t bytes_drained(double gb_per_s, double seconds) noexcept {
  return static_cast<std::uint64_t>(std::max(gb_per_s * 1e9 * seconds / 2, in_flight_min));
}

double planned_seconds(const SearchOptions& options) {
  if (!options.exhaustive) return options.budget_seconds;
  const auto measurements = static_cast<double>(whole_grid(options).size() * grid_passes * 3);
  return measurements * seconds_per_measurement(options.budget_seconds) +
         (1 - variation_share) * options.budget_seconds;
}

Result<SearchResult> search(const SearchOptions& options, const Measure& measure) {
  return Search(options, measure).run();
}

std::vector<std::string> drift_warnings(const Drift& drift, double bytes_written) {
  const double read = drift.read_last / std::max(drift.read_first, 1e-12);
  const double write = drift.write_last / std::max(drift.write_first, 1e-12);
  char text[320];
  if (read < fallen) {
    std::snprintf(text, sizeof text,
                  "the disk slowed down during the run: reads from %.2f to %.2f GB/s, writes from "
                  "%.2f to %.2f; it is throttled (heat, the limits of a cloud disk) or in use by "
                  "others: run again when it is cool and idle, and plan with the lower figure",
                  drift.read_first, drift.read_last, drift.write_first, drift.write_last);
    return {text};
  }
  if (write < fallen) {
    std::snprintf(text, sizeof text,
                  "writes fell from %.2f to %.2f GB/s after %.0f GB, reads did not: a small write "
                  "cache (SLC), a limit on writes, or in use by others; training writes more than "
                  "that, plan with the lower figure",
                  drift.write_first, drift.write_last, bytes_written * 1e-9);
    return {text};
  }
  return {};
}

}  // namespace artesian::bench
