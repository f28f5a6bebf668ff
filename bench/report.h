// What the benches share: repeated timing of a kernel beside an upper bound, and one JSON line per
// result.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace artesian::bench {

struct Seconds {
  double min = 0, median = 0, max = 0;
};

/// CPU seconds of the calling thread, which do not depend on other load on the same cores (except
/// on the shared memory).
inline double thread_seconds() {
  timespec time;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline Seconds summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], seconds.back()};
}

struct Result {
  std::string name;
  std::string parameters;  // JSON members, such as "\"threads\": 2"
  std::uint64_t bytes = 0;
  Seconds seconds;
  Seconds ceiling;  // time of the upper bound, for the same bytes
  Seconds ratio;    // ceiling / kernel, over pairs measured back to back
};

/// Runs the two in turn, `repeats` times after one warm-up, so that disturbances affect both. Each
/// function returns the seconds that it took.
inline Result measure(std::string name, std::string parameters, std::uint64_t bytes, int repeats,
                      const std::function<double()>& kernel,
                      const std::function<double()>& ceiling) {
  std::vector<double> kernel_seconds, ceiling_seconds, ratios;
  kernel();
  ceiling();
  for (int i = 0; i < repeats; ++i) {
    kernel_seconds.push_back(kernel());
    ceiling_seconds.push_back(ceiling());
    ratios.push_back(ceiling_seconds.back() / kernel_seconds.back());
  }
  return {std::move(name),           std::move(parameters),      bytes,
          summarize(kernel_seconds), summarize(ceiling_seconds), summarize(ratios)};
}

inline void print(const Result& result) {
  const auto giga = [&](double seconds) {
    return static_cast<double>(result.bytes) / seconds / 1e9;
  };
  std::printf(
      "{\"name\": \"%s\", %s, \"bytes\": %llu, \"seconds\": {\"min\": %.5f, \"median\": %.5f, "
      "\"max\": %.5f}, \"gb_per_s\": %.2f, \"gb_per_s_best\": %.2f, \"ceiling_gb_per_s\": %.2f, "
      "\"ceiling_gb_per_s_best\": %.2f, \"ratio\": %.3f, "
      "\"ratio_min\": %.3f, \"ratio_max\": %.3f, \"ratio_best\": %.3f, \"commit\": "
      "\"%s\"}\n",
      result.name.c_str(), result.parameters.c_str(), static_cast<unsigned long long>(result.bytes),
      result.seconds.min, result.seconds.median, result.seconds.max, giga(result.seconds.median),
      giga(result.seconds.min), giga(result.ceiling.median), giga(result.ceiling.min),
      result.ratio.median, result.ratio.min, result.ratio.max,
      result.ceiling.min / result.seconds.min, ARTESIAN_COMMIT);
  std::fflush(stdout);
}

}  // namespace artesian::bench
