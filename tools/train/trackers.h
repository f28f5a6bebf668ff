// Figures of steps for the trackers that the config names (tensorboard, wandb, csv_monitor, comet):
// a Python process, python/artesian/trackers.py, gets a line of JSON for each step.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "zero3/config/config.h"
#include "zero3/step/step_result.h"

namespace artesian::tools {

/// Never costs a step, nor waits for a tracker before the end: what does not work is a warning.
class Trackers {
 public:
  Trackers() = default;
  /// Starts the process, if the config names trackers.
  explicit Trackers(const zero3::Config& config);
  ~Trackers() { close(); }
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;
  Trackers(Trackers&&) = delete;
  Trackers& operator=(Trackers&&) = delete;

  void write(const zero3::StepResult& result, const std::optional<double>& held_out_loss);
  /// Waits until the trackers have all of it, for a minute at most.
  void close();

 private:
  void start(const zero3::Config& config);
  void give_up(const std::string& reason);

  pid_t process_ = -1;
  Descriptor lines_;
  bool is_behind_ = false;  // and a warning has said so
};

}  // namespace artesian::tools
