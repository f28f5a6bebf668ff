// How long a planned step takes: its events over the resources of a machine
// (zero3/plan/schedule.h). Several steps are simulated one after the other, and the last is
// reported: what is fetched ahead of a step is the step before it's.
//
// On a CPU one team computes the model and the optimizer. Beside a separate device the host CPU
// adds gradients and updates what is not on the device, while the device computes.
//
// Between ranks, gradients go over the bus while stages below are in backward. The norm waits for
// all of them; what computes does not, as if there were a bucket for all that is on its way. What
// the others have updated of a unit comes once this rank has updated its share, in the order of
// use, and a stage waits for its own units alone: most of it comes under forward.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "zero3/plan/schedule.h"
#include "zero3/plan/step_plan.h"

namespace artesian::zero3 {

struct Rates {  // bytes per second; a rate that nothing needs is never looked at
  double disk_read = 0.0;
  double disk_write = 0.0;
  // Of parameters, spilled gradients and kept inputs, where their folders are other ones than the
  // optimizer's, which the two above are of then. 0: they are the same.
  double param_read = 0.0;
  double param_write = 0.0;
  bool param_apart = false;  // and share no disk with these
  Disk disk = Disk::Shared;
  double memory = 0.0;         // of the CPU's kernels: every byte read and every byte written
  double checksum = 0.0;       // of what comes from and goes to NVMe; 0: nothing is verified
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
  std::vector<StepSpan> spans;                   // of one step
};

struct StepTimeRequest {
  const Placement* placement = nullptr;
  const StepPlan* plan = nullptr;
  Rates rates;
  StageSeconds stages;
  /// The most that activations take on a CPU: under backward the staging ring borrows what they
  /// have left (Note [Borrowed items] in tiering/ring_order.h). 0: nothing is lent.
  std::uint64_t activation_bytes = 0;
};

StepTime simulate_step(const StepTimeRequest& request);

}  // namespace artesian::zero3
