// Input and result of a step's simulated time: rates of a machine and seconds of a model's stages;
// seconds of the step and of each resource in it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "zero3/plan/schedule.h"
#include "zero3/plan/step_event.h"

namespace artesian::zero3 {

struct Rates {  // bytes per second; rates that are not used may be 0
  double disk_read = 0.0;
  double disk_write = 0.0;
  // Rates of the disk of parameters, spilled gradients and kept inputs, if it is not the
  // optimizer's, to which the two above then apply. 0: the same disk.
  double param_read = 0.0;
  double param_write = 0.0;
  bool param_apart = false;  // the parameters' disk is a separate one
  Disk disk = Disk::Shared;
  double memory = 0.0;         // bytes read and written per second by the CPU's kernels
  double checksum = 0.0;       // checksum rate for bytes on NVMe; 0: nothing is verified
  double device_memory = 0.0;  // as `memory`, for a separate device's kernels
  double to_device = 0.0;
  double to_host = 0.0;
  double bus = 0.0;
};

/// Seconds of one micro-batch: [stages] each.
struct StageSeconds {
  std::vector<double> forward;
  std::vector<double> backward;
};

struct StepSpan {
  Resource resource = Resource::Compute;
  StepEvent::Kind kind = StepEvent::Kind::Compute;
  double begin = 0.0;  // seconds from the step's beginning; negative: prefetched
  double end = 0.0;
};

struct StepTime {
  double seconds = 0.0;
  double model_seconds = 0.0;                    // forward and backward only
  std::array<double, resource_count> busy = {};  // seconds of each resource
  std::vector<StepSpan> spans;                   // recorded spans of one step
};

/// What determines how long a step takes.
struct StepTiming {
  Rates rates;
  StageSeconds stages;
  /// Peak memory of activations on a CPU: under backward the staging ring borrows the part that
  /// they have freed (Note [Borrowed items] in tiering/ring_order.h). 0: nothing is lent.
  std::uint64_t activation_bytes = 0;
};

}  // namespace artesian::zero3
