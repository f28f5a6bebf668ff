// Proves what a plan assumes of a GPU: activations, CUDA and the device tier share its memory, the
// update runs under backward, transfers hidden by computing do not order strategies, and a stage
// takes the seconds of its kinds of work, or of its launches if these take longer.
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
  tried.device_bytes = left / 2;  // the rest is unused
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
  // ZeRO-3 has more on the bus, of which only the step's first units are not hidden.
  EXPECT_LE(of("ZeRO-2"), of("ZeRO-3"));
  EXPECT_GE(of("ZeRO-2"), of("ZeRO-3") * 0.98);
  EXPECT_LT(of("ZeRO-2"), of("ZeRO-2, optimizer on cpu"));  // GPUs update what they hold
}

// Llama 3.1 8B at 2048 tokens, computed by hand at the rates of an H100: 6.98e9 elements of
// matrices in blocks, 0.525e9 in the head; attention's scores of half of all pairs; passes over
// 12.5 h + 3 i elements of a block forward and 17.5 h + 5 i backward.
TEST(GpuRates, SecondsAreThoseOfEachKindOfWork) {
  const models::ModelConfig model = models::parse_model_config(R"({"model_type": "llama",
      "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-5})",
                                                               "config.json")
                                        .value();
  const auto work = models::device_work(model, 2048, DType::BFloat16);
  const auto in_all = [&](const DeviceRates& rates) {
    const ModelSeconds of = token_seconds(work, rates);
    const double blocks = 2 * of.block_forward + of.block_backward;  // as if checkpointed
    return 16384 * (32 * blocks + of.head_forward + of.head_backward);
  };
  const double nothing = 1e30;
  const double products = in_all({650e12, nothing, nothing});
  const double attention = in_all({nothing, 300e12, nothing});
  const double passes = in_all({nothing, nothing, 2.5e12});
  EXPECT_NEAR(products, 16384 * (8 * 6.98e9 + 6 * 0.525e9) / 650e12, 0.001);
  const double scores = 2.0 * 4096 * 2048 * 32;
  EXPECT_NEAR(attention, 16384 * scores * (2 / 300e12 + 2.5 / 150e12), 0.001);
  const double block = 2 * (2 * (12.5 * 4096 + 3 * 14336) + 17.5 * 4096 + 5 * 14336);
  const double head = 2 * (2 * 128256 + 9.0 * 4096);
  EXPECT_NEAR(passes, 16384 * (32 * block + head) / 2.5e12, 0.001);
  EXPECT_NEAR(in_all({650e12, 300e12, 2.5e12}), products + attention + passes, 1e-9);
}

TEST_F(GpuPlanner, AStageTakesNoLessThanItsLaunches) {
  PlanCase tried = of_a_gpu(plan(Offload::None, Offload::None), 80 * gib);
  tried.host_bytes = 128 * gib;
  const auto seconds = [&](const ModelSeconds& launches) {
    tried.launches = launches;
    return figures_of(tried).time.model_seconds;
  };
  const double tokens = 2 * 64;
  const double computed = seconds({});
  const ModelSeconds& of = tried.compute;
  EXPECT_EQ(seconds({of.block_forward * tokens / 2, of.block_backward * tokens / 2}), computed);
  const auto blocks = static_cast<double>(stages.size() - 2);
  const double more = seconds({0, of.block_backward * tokens + 1.0});
  EXPECT_NEAR(more - computed, 4 * blocks, 1e-6);  // a second of each, in each micro-batch
  tried.config.activation_checkpointing = true;
  const double again = seconds({of.block_forward * tokens + 1.0}) - seconds({});
  EXPECT_NEAR(again, 2 * 4 * blocks, 1e-6);  // forward, and once more in backward
}

}  // namespace
}  // namespace artesian::tools
