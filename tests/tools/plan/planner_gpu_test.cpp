// Proves what a plan takes of a GPU: activations, CUDA and the device tier share its memory, the
// update goes on under backward, and what a bus hides orders nothing.
#include "tests/tools/plan/planner_fixture.h"

namespace artesian::tools {
namespace {

TEST_F(Planner, ActivationsComeOutOfAGpusMemory) {
  PlanCase tried = of_a_gpu(plan(Offload::Cpu, Offload::Cpu), 2 * gib);
  const PlanFigures figures = figures_of(tried);
  EXPECT_EQ(figures.device.budget, *tried.gpu_bytes - figures.activations - gib);
  tried.gpu_bytes = figures.activations + gib - 1;
  expect_one_byte_missing(tried, "train_micro_batch_size_per_gpu: got ");
  tried.config.activation_checkpointing = true;  // makes room, and costs another forward
  tried.gpu_bytes = 2 * gib;
  const PlanFigures again = figures_of(tried);
  EXPECT_LT(again.activations, figures.activations);
  EXPECT_GT(again.time.model_seconds, figures.time.model_seconds);
}

struct EightBillion {
  explicit EightBillion(PlanCase plan) : tried(std::move(plan)) {
    tried.model = &model;
    tried.parameters = &parameters;
    tried.stages = &stages;
    tried.config.micro_batch_size = 1;
    tried.config.activation_checkpointing = true;
    tried.compute_dtype = DType::BFloat16;
    tried.length = 2048;
  }

  const models::ModelConfig model = models::llama_of_size(8e9);
  const std::vector<zero3::ParameterSpec> parameters = models::model_parameters(model);
  const std::vector<zero3::StageSpec> stages = models::model_stages(model);
  PlanCase tried;
};

TEST_F(Planner, EightBillionParametersLeaveRoomForActivationsOn24GiB) {
  EightBillion eight(of_a_gpu(plan(Offload::Nvme, Offload::Nvme), 24 * gib));
  eight.tried.host_bytes = 64 * gib;
  const PlanFigures figures = figures_of(eight.tried);
  EXPECT_GT(figures.activations, gib);
  EXPECT_EQ(figures.device.budget, 24 * gib - figures.activations - gib);
  EXPECT_LE(figures.device.used(), figures.device.budget);
}

TEST_F(Planner, ClippingLeavesTheUpdateUnderBackwardBesideAGpu) {
  EightBillion eight(of_a_gpu(plan(Offload::Cpu, Offload::Cpu), 24 * gib));
  PlanCase& tried = eight.tried;
  tried.host_bytes = 300 * gib;
  tried.compute = {1.25e-4, 2.5e-4, 1.25e-4, 2.5e-4};  // about as long as the host takes
  tried.config.gradient_clipping = 0.0;
  tried.config.check_grad_overflow = false;
  const double free = figures_of(tried).time.seconds;
  tried.config.gradient_clipping = 1.0;
  const PlanFigures clipped = figures_of(tried);
  EXPECT_LT(clipped.time.seconds, 1.01 * free);
  tried.config.artesian.speculative_update = false;
  const PlanFigures waits = figures_of(tried);
  EXPECT_GT(waits.time.seconds, 1.01 * free);
  EXPECT_GT(clipped.host.buffers, waits.host.buffers);
  tried.config.artesian.speculative_update = true;
  tried.host_bytes = waits.host.used();  // no room for what the state was
  EXPECT_GT(figures_of(tried).time.seconds, 1.01 * free);
}

TEST_F(Planner, ABudgetOfTheDeviceAndActivationsMustFitInAGpu) {
  PlanCase tried = of_a_gpu(plan(Offload::Cpu, Offload::Cpu), 2 * gib);
  const std::uint64_t left = figures_of(tried).device.budget;
  tried.device_bytes = left;
  EXPECT_EQ(figures_of(tried).device.budget, left);
  tried.device_bytes = left / 2;  // the rest is nobody's
  EXPECT_EQ(figures_of(tried).device.budget, left / 2);
  EXPECT_EQ(find(find_changes(tried, figures_of(tried)), "a GPU with more memory"), nullptr);
  tried.device_bytes = left + 1;
  expect_one_byte_missing(tried, "artesian.device_memory: got ");
}

TEST_F(Planner, OfAGpusRunTheHostTierAndTheProgramMustFitInMemory) {
  PlanCase tried = of_a_gpu(plan(Offload::Cpu, Offload::Cpu), 8 * gib);
  const PlanFigures figures = figures_of(tried);
  EXPECT_GT(figures.device.used(), 0u);
  EXPECT_GT(figures.activations, 0u);
  tried.program_bytes = 64 * mib;
  tried.memory_max = figures.host.used() + 64 * mib;
  EXPECT_TRUE(evaluate(tried).has_value());
  --*tried.memory_max;
  expect_one_byte_missing(tried, "artesian.host_memory: got ");
}

class GpuPlanner : public Planner {
 protected:
  GpuPlanner() : Planner(1.3e9) {}
};

TEST_F(GpuPlanner, WhatTheBusHidesDoesNotOrderStrategies) {
  PlanCase tried = of_a_gpu(plan(Offload::None, Offload::None), 80 * gib);
  tried.ranks = 8;
  tried.config.accumulation_steps = 1;
  tried.length = 2048;
  tried.host_bytes = 128 * gib;
  tried.compute_dtype = DType::BFloat16;
  tried.compute = {4e-7, 8e-7, 4e-7, 8e-7};  // 400 TFLOP/s
  tried.rates.bus = 2e11;
  tried.rates.device_memory = 2e12;
  const auto all = search(tried);
  const auto of = [&](const std::string& name) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const Candidate& candidate) { return candidate.name == name; });
    EXPECT_NE(found, all.end()) << name;
    return found == all.end() ? 0.0 : found->figures.time.seconds;
  };
  EXPECT_LE(of("ZeRO-2"), of("ZeRO-3"));         // which has more on the bus
  EXPECT_LE(of("ZeRO-2"), of("ZeRO-1"));         // which adds all gradients on each rank
  EXPECT_LE(of("ZeRO-1"), of("DDP (stage 0)"));  // and updates all of them there
  for (const Candidate& candidate : all) {
    if (candidate.config.zero.offload_optimizer.device == Offload::None) continue;
    EXPECT_GT(candidate.figures.time.seconds, of("DDP (stage 0)")) << candidate.name;
  }
}

}  // namespace
}  // namespace artesian::tools
