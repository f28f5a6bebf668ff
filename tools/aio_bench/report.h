// What `aio_bench tune` found, and how it is printed: as JSON, as text, as a plot
// (tools/aio_bench/plot.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tiering/disk/profile.h"
#include "tools/aio_bench/curve.h"
#include "tools/aio_bench/search.h"

namespace artesian::bench {

/// One of the paths, measured alone.
struct PathReport {
  std::string path;
  std::string file_system;
  std::string device;
  std::vector<CurvePoint> curve;
  tiering::MachineProfile profile;
  std::string profile_file;  // empty if the profile was not saved
  std::string replaced;      // the profile that it replaced, if any
};

struct TuneReport {
  SearchResult found;
  aio::EngineKind automatic = aio::EngineKind::IoUring;  // what "auto" stands for here
  std::vector<PathReport> paths;
  std::uint64_t size = 0;  // size of all files together
  bool direct = false;
  bool verified = false;
  double seconds = 0;
  std::vector<std::string> warnings;
};

struct Spread {
  double low = 0, middle = 0, high = 0;
};
/// Least, median and greatest value of one figure over samples; zeros without samples.
Spread spread_of(const std::vector<Sample>& samples, double Sample::*figure);

nlohmann::ordered_json to_json(const TuneReport& report);

/// The settings as config text, a line each for read, write and mixed, and one with the gain over
/// the defaults and the next best.
std::string to_text(const TuneReport& report);

}  // namespace artesian::bench
