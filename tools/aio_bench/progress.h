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
  std::string rate;    // rate of the last measurement, or empty
  std::string detail;  // what that measurement was; shortened first if columns are few
  double worth_s = 0;  // seconds that must be left for a line without a terminal
};

/// Returns what fits into this many columns of a terminal: the rate comes before the text that
/// explains it, and the bar takes the remaining room.
std::string fitted(const ProgressLine& line, std::size_t columns);

/// Returns the line of a pass over files of this size: "writing 60.0 GiB".
ProgressLine pass_line(const std::string& verb, std::uint64_t size, const Pass& now);

/// A progress bar. One at a time: while it lives, log lines replace the bar on a terminal.
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
