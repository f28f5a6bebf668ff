#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "zero3/step/swap_paths.h"

namespace artesian::zero3 {

/// What one optimizer step did; the fields of the JSONL log (interfaces.md).
struct StepResult {
  std::uint64_t step = 0;  // from 1, including skipped steps
  double loss = 0.0;       // mean over the micro-batches
  double lr = 0.0;
  double loss_scale = 1.0;
  bool overflow = false;  // skipped: a loss or gradient was not finite
  // the part of the update made under backward was rolled back: under_backward.h
  bool taken_back = false;
  std::uint64_t updated_under_backward = 0;  // units finally updated before the norm was known
  std::string overflow_parameter;            // the first parameter with a non-finite gradient
  std::optional<Error> end;  // if set, no further step is possible, and every later call returns it
  double grad_norm = 0.0;    // before clipping; not finite on overflow
  bool stop = false;         // a rank was asked to stop: StepCoreOptions::stop
  std::uint64_t tokens = 0;  // token ids if stage 0 looks them up, else samples
  double step_s = 0.0;       // from first forward to step(), including the previous step's update
  double predicted_step_s = 0.0;  // not finite before the first prediction
  // Lower bounds for the step: seconds of its computing, and of its bytes at the disk's probed
  // speed.
  double computed_s = 0.0, disk_s = 0.0;
  std::uint64_t bytes_nvme_read = 0, bytes_nvme_write = 0, bytes_h2d = 0, bytes_d2h = 0;
  std::uint64_t bytes_bus = 0;  // sent to other ranks
  SwapPathsUse bytes_paths;     // bytes_nvme_* for each folder, if there are several
  std::uint64_t fetch_demand = 0, fetch_prefetched = 0, fetch_reused = 0;  // in elements
  std::uint64_t live_parameters_max = 0;
  std::uint64_t peak_device = 0, peak_host = 0, peak_activations = 0, peak_process_rss = 0;
  // With the fields above, all memory of the process: gradients are part of peak_device and
  // peak_activations.
  std::uint64_t peak_gradients = 0, peak_program = 0, peak_heap = 0;
  double wait_param_s = 0.0, wait_grad_s = 0.0, wait_optimizer_s = 0.0, wait_input_s = 0.0;
  double bus_s = 0.0;            // seconds sending and receiving, and waiting for other ranks
  std::uint32_t waited_for = 0;  // the rank with the least bus_s: the others wait for the slowest
  // Seconds of the thread pool: gradient_s for rounding and adding gradients, cast_s for verifying
  // and casting parameters. optimizer_s includes its waits.
  double forward_s = 0.0, backward_s = 0.0, gradient_s = 0.0, cast_s = 0.0, optimizer_s = 0.0;
};

}  // namespace artesian::zero3
