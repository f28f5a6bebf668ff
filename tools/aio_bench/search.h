// The search of `aio_bench tune` for the settings with the highest throughput. It is a pure
// function of what a callback measures, without clock, disk or threads, so that tests can use
// simulated disks.
//
// Note [Search]: bandwidth as a function of block size and depth rises to a plateau and falls
// beyond it, and a disk that is shared or hot drifts by more than settings differ. So (1) a coarse
// grid of block sizes and depths finds the region; (2) each setting in turn is varied with the
// others fixed, in two passes, the second in reverse order, so that steady drift cancels; (3) the
// best settings are measured again, interleaved, and the best two head to head, in pairs. Only
// figures of the same stage are compared. The score is the rate of moving one GB each of reads,
// writes and a mix of both, like a training step.
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
  aio::Polling polling = aio::Polling::None;  // not searched: the requested polling

  bool operator==(const Settings&) const = default;
  std::uint64_t bytes_in_flight() const noexcept { return block_size * queue_depth * threads; }
};

aio::EngineOptions engine_options(const Settings& settings) noexcept;

/// "1.00 MiB x 32 x 1, io_uring".
std::string describe(const Settings& settings);

/// "512 KiB blocks, depth 4, 1 thread, io_uring", for output with enough room.
std::string describe_at_length(const Settings& settings);

/// One measurement.
struct Sample {
  double gb_per_s = 0;
  double latency_us_p50 = 0;
  double latency_us_p95 = 0;
  double latency_us_p99 = 0;
  double cost_seconds = 0;  // the part of the budget that it took
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
  std::uint64_t bytes_in_flight_max = 0;  // settings with more bytes in flight are left out
};

struct SearchProgress {
  const char* stage = "";
  double seconds = 0;       // seconds of the budget used so far
  double seconds_left = 0;  // estimated: of the budget, or of the required measurements
  const Settings* settings = nullptr;
  Access access = Access::Read;
  double gb_per_s = 0;  // rate of the last measurement
};

struct SearchOptions {
  SearchSpace space;
  Settings start;                      // a point in the search space; the reference for drift
  double budget_seconds = 60;          // budget of all measurements; may be exceeded by a tenth
  std::optional<Settings> defaults{};  // settings used without tuning: always among the finalists
  bool exhaustive = false;             // measure the whole space, ignoring the budget
  std::function<void(const SearchProgress&)> progress = [](const SearchProgress&) {};
};

/// Median rates of the start settings at the beginning and at the end of the search.
struct Drift {
  double read_first = 0, read_last = 0;
  double write_first = 0, write_last = 0;
};

struct SearchResult {
  Point winner;                      // only the samples of the head-to-head comparison
  Point runner_up;                   // the same settings, if the space has only one
  std::vector<double> head_to_head;  // winner's score / runner-up's, for each pair
  std::vector<Point> points;         // all settings, all samples
  Drift drift;
  double over_defaults = 0;               // winner's score / the defaults' score; 0: not measured
  std::uint64_t bytes_in_flight_max = 0;  // limit: what drains soon enough to be measured
  double seconds = 0;                     // duration of the search
};

using Measure =
    std::function<Result<Sample>(const Settings& settings, Access access, double seconds)>;

/// Seconds of one measurement within this budget.
double seconds_per_measurement(double budget_seconds) noexcept;

/// The most bytes in flight at this rate for which a measurement is more than draining the queue.
std::uint64_t bytes_drained(double gb_per_s, double seconds) noexcept;

/// Estimates the seconds of a search.
double planned_seconds(const SearchOptions& options);

/// Runs the search. Errors: those of `measure`.
Result<SearchResult> search(const SearchOptions& options, const Measure& measure);

/// Returns what the drift indicates about the disk, one sentence each. `bytes_written`: so far.
std::vector<std::string> drift_warnings(const Drift& drift, double bytes_written);

using tools::median;

}  // namespace artesian::bench
