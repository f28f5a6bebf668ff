// The results of `aio_bench tune`, and their output as JSON, text or a plot
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
  std::string replaced;      // the profile that was replaced, if any
};

struct TuneReport {
  SearchResult found;
  aio::EngineKind automatic = aio::EngineKind::IoUring;  // the engine that "auto" selects here
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
/// Minimum, median and maximum of one figure over samples; zeros without samples.
Spread spread_of(const std::vector<Sample>& samples, double Sample::*figure);

nlohmann::ordered_json to_json(const TuneReport& report);

/// The settings as config text; a line each for read, write and mixed; and one line with the gain
/// over the defaults and over the next best.
std::string to_text(const TuneReport& report);

}  // namespace artesian::bench
