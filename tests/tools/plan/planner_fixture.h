// The model and the plans that tests of the planner start from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/llama_of_size.h"
#include "tools/plan/planner.h"

namespace artesian::tools {

using zero3::Disk;
using zero3::Offload;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;

inline std::string in_mib(std::uint64_t bytes) {
  return std::to_string(bytes / mib) + " MiB";
}

class Planner : public testing::Test {
 protected:
  explicit Planner(double size = 3e7)
      : model(models::llama_of_size(size)),
        parameters(models::model_parameters(model)),
        stages(models::model_stages(model)) {}

  PlanCase plan(Offload param, Offload optimizer) const {
    PlanCase made;
    made.model = &model;
    made.parameters = &parameters;
    made.stages = &stages;
    made.config.micro_batch_size = 2;
    made.config.accumulation_steps = 4;
    made.config.param_dtype = made.config.grad_accum_dtype = DType::BFloat16;
    made.config.zero.stage = 3;
    made.config.zero.offload_param.device = param;
    made.config.zero.offload_param.max_in_cpu = 0;
    made.config.zero.offload_optimizer.device = optimizer;
    made.length = 64;
    made.device_bytes = made.host_bytes = 2 * gib;
    made.rates = {.disk_read = 2e9,
                  .disk_write = 1e9,
                  .disk = Disk::Shared,
                  .memory = 1e10,
                  .checksum = 1e10,
                  .device_memory = 1e12,
                  .to_device = 2e10,
                  .to_host = 2e10,
                  .bus = 1e11};
    made.compute_dtype = DType::Float32;
    made.compute = {1e-6, 2e-6, 2e-6, 4e-6};
    return made;
  }
  PlanCase on_nvme() const {
    PlanCase made = plan(Offload::Nvme, Offload::Nvme);
    made.device_bytes = 32 * mib;
    made.host_bytes = 150 * mib;  // gradients, and a part of the optimizer state
    made.config.zero.max_live_parameters = 0;
    return made;
  }

  /// Bytes of everything in memory, and of everything computed.
  static std::uint64_t memory_of(const PlanFigures& figures) {
    return figures.activations + figures.device.used() + figures.host.used();
  }
  /// Both keys name one folder.
  static DiskSpace space_of(std::uint64_t free) {
    const DiskSpace::Folder folder{"/nvme", 0, 1.0};
    return {.free = {free}, .param = {folder}, .optimizer = {folder}};
  }
  static const Change* find(const std::vector<Change>& changes, const std::string& key) {
    const auto found = std::find_if(changes.begin(), changes.end(),
                                    [&](const Change& change) { return change.key == key; });
    return found == changes.end() ? nullptr : &*found;
  }

  /// Gives the plan a GPU of `bytes`, of which the device tier gets what activations leave.
  static PlanCase of_a_gpu(PlanCase plan, std::uint64_t bytes) {
    plan.gpu = true;
    plan.device_bytes.reset();
    plan.gpu_bytes = bytes;
    return plan;
  }

  static void expect_one_byte_missing(const PlanCase& plan, const std::string& begin) {
    const auto refused = evaluate(plan);
    ASSERT_FALSE(refused.has_value());
    const Error& error = refused.error();
    EXPECT_EQ(error.code, ErrorCode::Exhausted);
    EXPECT_TRUE(error.message.starts_with(begin)) << error.message;
    EXPECT_NE(error.message.find(": 1 bytes missing; lower it"), std::string::npos)
        << error.message;
  }

  static PlanFigures figures_of(const PlanCase& plan) {
    auto figures = evaluate(plan);
    EXPECT_TRUE(figures.has_value()) << figures.error().to_string();
    return figures.has_value() ? std::move(figures).value() : PlanFigures{};
  }

  const models::ModelConfig model;
  const std::vector<zero3::ParameterSpec> parameters;
  const std::vector<zero3::StageSpec> stages;
};

}  // namespace artesian::tools
