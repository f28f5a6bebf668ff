// The throughput of one path as a function of block size, with the other settings as chosen: the
// curves of the plot and the rates of the machine profile. Like the search
// (tools/aio_bench/search.h) it is a pure function of what a callback measures.
//
// One measurement of a shared disk may be off by half, so each point is measured several times, in
// passes up and down the block sizes, and its median is used. The figures of the chosen block are
// taken from the search's head-to-head comparison, which has measured it seven times or more.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/aio_bench/search.h"

namespace artesian::bench {

/// With the chosen settings except for the block size.
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
  std::uint64_t bytes_in_flight_max = 0;  // block sizes with more bytes in flight are left out,
                                          // except for the chosen one
  int passes = 5;
  double seconds = 0;            // length of one measurement
  double seconds_max = 0;        // no pass begins that would end later, except the first three
  const Point* known = nullptr;  // measurements of the chosen block, which are not repeated
  std::function<void(const Settings&, double seconds_left)> progress = [](const Settings&, double) {
  };
};

/// Estimates the duration on a disk of this rate (0: a fast one): a queue that takes longer to
/// drain than one measurement prolongs it.
double planned_seconds(const CurveOptions& options, double gb_per_s);

/// Measures the curve; points are ordered by block size, then by access. Errors: those of
/// `measure`.
Result<std::vector<CurvePoint>> measure_curve(const CurveOptions& options, const Measure& measure);

}  // namespace artesian::bench
