// Progress of a long measurement, on stderr: on a terminal a bar with the time left, otherwise a
// plain line for each stage.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "tools/aio_bench/ground.h"

namespace artesian::bench {

struct ProgressLine {
  std::string stage;
  double gone_s = 0;
  double left_s = 0;   // estimated
  std::string rate;    // rate of the last measurement, or empty
  std::string detail;  // description of that measurement; shortened first if there are few columns
  // without a terminal, a line is printed only if at least this many seconds are left
  double worth_s = 0;
};

/// Returns the parts that fit into this many columns: the rate takes precedence over the text that
/// explains it, and the bar takes the remaining columns.
std::string fitted(const ProgressLine& line, std::size_t columns);

/// Returns the line of a pass over files of this size: "writing 60.0 GiB".
ProgressLine pass_line(const std::string& verb, std::uint64_t size, const Pass& now);

/// A progress bar. One at a time: during its life, log lines replace the bar on a terminal.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Without a terminal, prints stage and time left when a stage begins.
  void show(const ProgressLine& line);
  /// Removes the bar, so that other lines can be printed.
  void clear();

 private:
  void wipe();

  const bool terminal_;
  std::mutex mutex_;  // engines log from their own threads
  bool shown_ = false;
  std::string stage_;
};

}  // namespace artesian::bench
