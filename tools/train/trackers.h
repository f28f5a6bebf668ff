// Sends the figures of each step to the trackers in the config (tensorboard, wandb, csv_monitor,
// comet): a Python process, python/artesian/trackers.py, gets a line of JSON for each step.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "zero3/config/config.h"
#include "zero3/step/step_result.h"

namespace artesian::tools {

/// Trackers never end or delay a step, and are waited for only at the end; failures are warnings.
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
  /// Waits until the trackers have received everything, for at most a minute.
  void close();

 private:
  void start(const zero3::Config& config);
  void give_up(const std::string& reason);

  pid_t process_ = -1;
  Descriptor lines_;
  bool is_behind_ = false;  // whether a warning has said that it lags behind
};

}  // namespace artesian::tools
