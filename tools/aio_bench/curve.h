// What one path gives by block size, all else as chosen: the curves of the plot and the rates of
// the machine profile. As the search (tools/aio_bench/search.h) a pure function of what a callback
// measures.
//
// One measurement of a shared disk may be off by half, so each point is measured several times, in
// passes there and back over the blocks, and its median counts. What the search knows better (the
// head to head has measured the chosen block seven times or more) is taken from there.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/aio_bench/search.h"

namespace artesian::bench {

/// With the chosen settings but for the block size.
struct CurvePoint {
  std::uint64_t block_size = 0;
  Access access = Access::Read;
  std::vector<Sample> samples;

  /// The median.
  double gb_per_s() const;
};

struct CurveOptions {
  std::vector<std::uint64_t> block_sizes;  // ascending
  Settings chosen;
  std::uint64_t bytes_in_flight_max = 0;  // blocks of which more were in flight are left out, save
                                          // for the chosen one
  int passes = 5;
  double seconds = 0;            // length of one measurement
  double seconds_max = 0;        // no pass begins that would end later, but for the first three
  const Point* known = nullptr;  // of the chosen block, which is not measured again
  std::function<void(const Settings&, double seconds_left)> progress = [](const Settings&, double) {
  };
};

/// Estimates how long it takes on a disk of this rate (0: a fast one): a queue that takes longer to
/// drain than one measurement prolongs that.
double planned_seconds(const CurveOptions& options, double gb_per_s);

/// Points ordered by block size, then by access. Errors: those of `measure`.
Result<std::vector<CurvePoint>> measure_curve(const CurveOptions& options, const Measure& measure);

}  // namespace artesian::bench
