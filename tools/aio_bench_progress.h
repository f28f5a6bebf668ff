// How far a long measurement is, on stderr: a bar with the time left on a terminal, else a plain
// line for each stage.
#pragma once

#include <string>

namespace artesian::bench {

class Progress {
 public:
  explicit Progress(double seconds_planned);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// `share`: done, 0 to 1. `detail`: what was measured last; shown on a terminal alone.
  void show(const std::string& stage, double share, const std::string& detail);
  /// Takes the bar away, so that other lines can be printed.
  void clear();

 private:
  const double seconds_planned_;
  const bool terminal_;
  bool shown_ = false;
  std::string stage_;
};

}  // namespace artesian::bench
