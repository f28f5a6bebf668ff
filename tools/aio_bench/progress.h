// How far a long measurement is, on stderr: a bar with the time left on a terminal, else a plain
// line for each stage.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "tools/aio_bench/ground.h"

namespace artesian::bench {

struct ProgressLine {
  std::string stage;
  double gone_s = 0;
  double left_s = 0;   // about
  std::string rate;    // of the last measurement, or nothing
  std::string detail;  // what that measured: the first to be cut off
  double worth_s = 0;  // elsewhere than on a terminal it is told where so much is left, at least
};

/// Returns what a terminal of so many columns shows of it: no more than fits, the rate before all
/// that explains it, and a bar as wide as there is room for.
std::string fitted(const ProgressLine& line, std::size_t columns);

/// Returns the line of a pass over files of so many bytes: "writing 60.0 GiB".
ProgressLine pass_line(const std::string& verb, std::uint64_t size, const Pass& now);

/// One at a time: on a terminal lines of log come in the bar's place while it lives.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Elsewhere than on a terminal: stage and time left, when a stage begins.
  void show(const ProgressLine& line);
  /// Takes the bar away, so that other lines can be printed.
  void clear();

 private:
  void wipe();

  const bool terminal_;
  std::mutex mutex_;  // engines log from threads of their own
  bool shown_ = false;
  std::string stage_;
};

}  // namespace artesian::bench
