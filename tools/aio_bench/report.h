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
  std::string profile_file;  // empty where it was not saved
  std::string replaced;      // what that file was, if it was there
};

struct TuneReport {
  SearchResult found;
  aio::EngineKind automatic = aio::EngineKind::IoUring;  // what "auto" stands for here
  std::vector<PathReport> paths;
  std::uint64_t size = 0;  // of all files together
  bool direct = false;
  bool verified = false;
  double seconds = 0;
  std::vector<std::string> warnings;
};

struct Spread {
  double low = 0, middle = 0, high = 0;
};
/// Least, median and greatest of one figure of some samples; zeros where there are none.
Spread spread_of(const std::vector<Sample>& samples, double Sample::*figure);

nlohmann::ordered_json to_json(const TuneReport& report);

/// The settings as a config takes them, a line for each of read, write and mixed, and one that says
/// how much that is over the defaults and over the next best.
std::string to_text(const TuneReport& report);

}  // namespace artesian::bench
