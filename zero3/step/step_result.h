#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "zero3/step/swap_paths.h"

namespace artesian::zero3 {

/// Says what one optimizer step did; the fields of the JSONL log (interfaces.md).
struct StepResult {
  std::uint64_t step = 0;  // counts from 1, skipped steps included
  double loss = 0.0;       // mean over the micro-batches
  double lr = 0.0;
  double loss_scale = 1.0;
  bool overflow = false;    // skipped: a loss or gradient was not finite
  bool taken_back = false;  // what of the update was made under backward: under_backward.h
  std::uint64_t updated_under_backward = 0;  // units, for good, before the norm was known
  std::string overflow_parameter;            // the first with a non-finite gradient
  std::optional<Error> end;       // set: no step may follow, and every later call returns it
  double grad_norm = 0.0;         // before clipping; not finite on overflow
  bool stop = false;              // a rank was asked to: StepCoreOptions::stop
  std::uint64_t tokens = 0;       // ids where stage 0 looks them up, else samples
  double step_s = 0.0;            // first forward to step(), with the update of the step before it
  double predicted_step_s = 0.0;  // not finite before the first prediction
  // Lower bounds of the step: seconds of its computing, and of its bytes at the disk's probed
  // speed.
  double computed_s = 0.0, disk_s = 0.0;
  std::uint64_t bytes_nvme_read = 0, bytes_nvme_write = 0, bytes_h2d = 0, bytes_d2h = 0;
  std::uint64_t bytes_bus = 0;  // sent to other ranks
  SwapPathsUse bytes_paths;     // bytes_nvme_* for each folder, if there are several
  std::uint64_t fetch_demand = 0, fetch_prefetched = 0, fetch_reused = 0;  // elements
  std::uint64_t live_parameters_max = 0;
  std::uint64_t peak_device = 0, peak_host = 0, peak_activations = 0, peak_process_rss = 0;
  // With the above, all of the process: gradients are in peak_device and in peak_activations.
  std::uint64_t peak_gradients = 0, peak_program = 0, peak_heap = 0;
  double wait_param_s = 0.0, wait_grad_s = 0.0, wait_optimizer_s = 0.0, wait_input_s = 0.0;
  double bus_s = 0.0;  // sending and receiving, and waiting for the other ranks
  // Of the compute team: gradients are rounded and added up, parameters verified and cast. With its
  // waits: optimizer_s.
  double forward_s = 0.0, backward_s = 0.0, gradient_s = 0.0, cast_s = 0.0, optimizer_s = 0.0;
};

}  // namespace artesian::zero3
