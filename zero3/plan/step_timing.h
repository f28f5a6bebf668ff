// What the time of a step is reckoned by, and what it is: rates of a machine, seconds of a model's
// stages, and the seconds of a step and of each resource in it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "zero3/plan/schedule.h"
#include "zero3/plan/step_event.h"

namespace artesian::zero3 {

struct Rates {  // bytes per second; unused rates may be 0
  double disk_read = 0.0;
  double disk_write = 0.0;
  // Of parameters, spilled gradients and kept inputs, where their folders are other ones than the
  // optimizer's, which the two above are of then. 0: they are the same.
  double param_read = 0.0;
  double param_write = 0.0;
  bool param_apart = false;  // the parameters' disk is a separate one
  Disk disk = Disk::Shared;
  double memory = 0.0;         // of the CPU's kernels: bytes read and written
  double checksum = 0.0;       // checksums of bytes on NVMe; 0: nothing is verified
  double device_memory = 0.0;  // of a separate device's kernels
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
  double begin = 0.0;  // seconds from the step's begin; below 0: fetched ahead
  double end = 0.0;
};

struct StepTime {
  double seconds = 0.0;
  double model_seconds = 0.0;                    // forward and backward alone
  std::array<double, resource_count> busy = {};  // seconds of each resource
  std::vector<StepSpan> spans;                   // spans of one step
};

/// How long things take.
struct StepTiming {
  Rates rates;
  StageSeconds stages;
  /// The most that activations take on a CPU: under backward the staging ring borrows what they
  /// have left (Note [Borrowed items] in tiering/ring_order.h). 0: nothing is lent.
  std::uint64_t activation_bytes = 0;
};

}  // namespace artesian::zero3
