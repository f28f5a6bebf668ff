// Shared by tests of a StepCore whose state is in swap files: a configuration, and budgets that
// keep the state there.
#pragma once

#include <string>

#include "tests/zero3/budgets.h"
#include "zero3/config/config.h"
#include "zero3/step/step_core.h"

namespace artesian::zero3 {

inline std::string error_of(const auto& result) {
  return result.has_value() ? "" : result.error().to_string();
}

/// Makes a configuration with steps of one sample. All state is in this folder.
inline Config config_on_nvme(const std::string& folder) {
  Config config;
  config.micro_batch_size = 1;
  config.optimizer.lr = 1e-2;
  config.optimizer.weight_decay = 0.1;
  config.zero.stage = 3;
  config.zero.offload_param = {.device = Offload::Nvme, .nvme_paths = {folder}, .max_in_cpu = 0};
  config.zero.offload_optimizer = {.device = Offload::Nvme, .nvme_paths = {folder}};
  config.zero.param_persistence_threshold = 0;
  config.zero.sub_group_size = 2048;
  config.artesian.engine = EngineChoice::Threads;
  return config;
}

/// The least host memory that holds the gradients. `device`: bytes.
inline StepCoreOptions options_on_nvme(const ModelShape& shape, const Config& config,
                                       bool split_master = true, std::uint64_t device = 1 << 20) {
  const std::uint64_t host =
      least_host_budget({.parameters = &shape.parameters,
                         .stages = &shape.stages,
                         .config = &config,
                         .device_bytes = device,
                         .split_master = split_master,
                         .spare_device = false},
                        [](const Placement& placement) { return !placement.gradients_spill(); });
  StepCoreOptions options;
  options.budgets = {.device = device, .host = host, .activations = 1 << 20};
  options.split_master = split_master;
  options.spare_device = false;
  return options;
}

}  // namespace artesian::zero3
