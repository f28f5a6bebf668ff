// How far a long measurement is, on stderr: a bar with the time left on a terminal, else a plain
// line for each stage.
#pragma once

#include <string>

namespace artesian::bench {

class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// `gone_s` of about `planned_s` seconds. `detail`: what was measured last; shown on a terminal
  /// alone.
  void show(const std::string& stage, double gone_s, double planned_s, const std::string& detail);
  /// Takes the bar away, so that other lines can be printed.
  void clear();

 private:
  const bool terminal_;
  bool shown_ = false;
  std::string stage_;
};

}  // namespace artesian::bench
