// `artesian plan`: predicts a training job's memory, traffic and speed before it runs.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace artesian::tools {

struct PlanOptions {
  std::string model;                 // a folder, or empty: use
  std::optional<double> parameters;  // --params
  std::string config;
  std::optional<std::uint64_t> gpus;  // GPUs per node; absent: CPUs like this machine's
  std::uint64_t processes = 1;        // per node, without GPUs
  std::uint64_t nodes = 1;
  std::optional<std::uint64_t> disks;  // per node; absent: those of nvme_path
  std::optional<std::uint64_t> length, micro_batch, accumulation;
  std::optional<std::uint64_t> device_memory, host_memory;
  // Units: bytes per second; TFLOP/s; seconds.
  std::optional<double> nvme_read, nvme_write, memory, device_bandwidth, link, bus, tflops,
      attention_tflops, launch;
  std::string plot;
  bool json = false;
  bool measure = false;

  std::uint64_t ranks_of_node() const noexcept { return gpus.value_or(processes); }
};

void add_plan_flags(CLI::App& plan);

/// Reads the flags. Errors: Invalid or Unsupported, one line per fault, at most 5.
Result<PlanOptions> read_plan_flags(const CLI::App& plan);

/// Prints the plan and returns the exit code: 0; 2 if something is wrong or does not fit; 1 if a
/// measurement fails or the output cannot be written; 128 + signal after one. Errors are printed to
/// stderr.
int run_plan(const PlanOptions& options);

}  // namespace artesian::tools
