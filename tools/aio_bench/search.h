// The search of `aio_bench tune`: which settings move most bytes. A pure function of what a
// callback measures: no clock, no disk, no thread, so that made-up disks test it.
//
// Note [Search]: bandwidth over block size and depth rises to a plateau and falls behind it, and a
// disk that is shared or hot drifts by more than settings differ. So (1) a coarse map of blocks and
// depths finds the region, ridges and all; (2) each setting in turn is varied with the others
// fixed, in two passes, the second in reverse order, so that steady drift cancels; (3) the best of
// all are measured again, interleaved, and the two winners head to head, pair by pair. Only figures
// of one stage are compared with each other. The score is the rate of moving a GB of each: reads,
// writes and a mix of both, which is what a training step does.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/aio_bench/ground.h"
#include "tools/shell/median.h"

namespace artesian::bench {

struct Settings {
  std::uint64_t block_size = 1 << 20;
  std::uint32_t queue_depth = 32;
  std::uint32_t threads = 1;
  aio::EngineKind engine = aio::EngineKind::IoUring;
  bool single_submit = false;
  bool overlap_events = true;
  aio::Polling polling = aio::Polling::None;  // not searched: the polling that was asked for

  bool operator==(const Settings&) const = default;
  std::uint64_t bytes_in_flight() const noexcept { return block_size * queue_depth * threads; }
};

aio::EngineOptions engine_options(const Settings& settings) noexcept;

/// "1.00 MiB x 32 x 1, io_uring".
std::string describe(const Settings& settings);

/// "512 KiB blocks, depth 4, 1 thread, io_uring", for places with enough room.
std::string describe_at_length(const Settings& settings);

/// One measurement.
struct Sample {
  double gb_per_s = 0;
  double latency_us_p50 = 0;
  double latency_us_p95 = 0;
  double latency_us_p99 = 0;
  double cost_seconds = 0;  // share of the budget that it took
};

/// Settings and the measurements made with them, by Access.
struct Point {
  Settings settings;
  std::array<std::vector<Sample>, 3> samples;

  const std::vector<Sample>& of(Access access) const noexcept {
    return samples[static_cast<std::size_t>(access)];
  }
  /// Returns the median; 0 if nothing was measured.
  double gb_per_s(Access access) const;
  /// Harmonic mean of the three rates.
  double score() const;
};

struct SearchSpace {
  std::vector<std::uint64_t> block_sizes;  // ascending
  std::vector<std::uint32_t> queue_depths;
  std::vector<std::uint32_t> threads;
  std::vector<aio::EngineKind> engines;
  std::uint64_t bytes_in_flight_max = 0;  // settings with more are left out
};

struct SearchProgress {
  const char* stage = "";
  double seconds = 0;       // seconds of the budget that are used up
  double seconds_left = 0;  // about: of the budget, or for what has to be done in any case
  const Settings* settings = nullptr;
  Access access = Access::Read;
  double gb_per_s = 0;  // rate of the last measurement
};

struct SearchOptions {
  SearchSpace space;
  Settings start;                      // a point of the space; the reference for drift
  double budget_seconds = 60;          // budget of all measurements; may be missed by a tenth
  std::optional<Settings> defaults{};  // settings of an untuned config: always among the finalists
  bool exhaustive = false;             // measures the whole space, whatever the budget
  std::function<void(const SearchProgress&)> progress = [](const SearchProgress&) {};
};

/// Rates of the start settings when the search began and when it ended, medians.
struct Drift {
  double read_first = 0, read_last = 0;
  double write_first = 0, write_last = 0;
};

struct SearchResult {
  Point winner;                      // samples of the head to head alone
  Point runner_up;                   // the same settings if there is only one in the space
  std::vector<double> head_to_head;  // winner's score / runner-up's, pair by pair
  std::vector<Point> points;         // all settings, all samples
  Drift drift;
  double over_defaults = 0;               // winner's score / the defaults'; 0: not measured
  std::uint64_t bytes_in_flight_max = 0;  // what drains soon enough to be measured
  double seconds = 0;                     // cost
};

using Measure =
    std::function<Result<Sample>(const Settings& settings, Access access, double seconds)>;

/// Seconds of one measurement within such a budget.
double seconds_per_measurement(double budget_seconds) noexcept;

/// Bytes that may be in flight at such a rate for a measurement to be more than draining a queue.
std::uint64_t bytes_drained(double gb_per_s, double seconds) noexcept;

/// Estimates what a search costs.
double planned_seconds(const SearchOptions& options);

/// Errors: those of `measure`.
Result<SearchResult> search(const SearchOptions& options, const Measure& measure);

/// Returns what drift tells about the disk, one sentence each; `bytes_written` so far.
std::vector<std::string> drift_warnings(const Drift& drift, double bytes_written);

using tools::median;

}  // namespace artesian::bench
