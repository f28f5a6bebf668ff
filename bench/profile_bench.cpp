// Trains a model on random tokens and records the device's activity in the steps after the warm-up,
// with LibTorch's profiler (Kineto), for dev/gpu_check's part profile.
//
//   profile_bench MODEL_DIR CONFIG LENGTH DEVICE WARM_UP STEPS TRACE.json
//
// Prints a JSON line for each step; TRACE.json is a Chrome trace, whose events of the category
// "kernel" are launches on a GPU.
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/registry.h"
#include "tools/shell/process_setup.h"
#include "tools/train/made_up_tokens.h"
#include "zero3/step/config_file.h"
#include "zero3/step/weights.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/from_torch.h"

namespace artesian::bench {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

struct Profile {
  std::string model;
  std::string config;
  std::uint64_t length = 0;
  std::string device;
  std::uint64_t warm_up = 0;
  std::uint64_t steps = 0;
  std::string trace;
};

Result<void> train(zero3::Engine& engine, tools::MadeUpTokens& tokens, std::uint64_t steps) {
  for (std::uint64_t step = 0; step < steps; ++step) {
    ARTESIAN_TRY_VOID(engine.forward_backward(tokens.next()));
    ARTESIAN_TRY(result, engine.step());
    if (result.end.has_value()) return *std::move(result.end);
    std::printf("{\"seconds\": %.6f, \"loss\": %.9g}\n", result.step_s, result.loss);
    std::fflush(stdout);
  }
  return {};
}

Result<void> record(const Profile& asked) {
  ARTESIAN_TRY(model, models::read_model_config(asked.model));
  ARTESIAN_TRY(config, zero3::read_config(asked.config, {}));
  const auto module = models::make_module(model);
  ARTESIAN_TRY(engine, zero3::Engine::create(*module, config, {.device = asked.device}));
  zero3::RandomWeights weights(module->parameters(), 1);
  ARTESIAN_TRY_VOID(engine->initialize(weights));
  tools::MadeUpTokens tokens({.vocabulary = model.vocab_size,
                              .micro_batches = config.accumulation_steps,
                              .samples = config.micro_batch_size,
                              .length = asked.length});
  ARTESIAN_TRY_VOID(train(*engine, tokens, asked.warm_up));
  std::set<ActivityType> activities{ActivityType::CPU};
  if (asked.device != "cpu") activities.insert(ActivityType::CUDA);
  const ProfilerConfig settings(ProfilerState::KINETO);
  return zero3::from_torch([&]() -> Result<void> {
    profiler::prepareProfiler(settings, activities);
    profiler::enableProfiler(settings, activities);
    auto trained = train(*engine, tokens, asked.steps);
    profiler::disableProfiler()->save(asked.trace);
    auto closed = engine->close();
    return trained.has_value() ? std::move(closed) : std::move(trained);
  });
}

}  // namespace
}  // namespace artesian::bench

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 7) {
    std::fputs("profile_bench: error: got wrong arguments; see bench/profile_bench.cpp\n", stderr);
    return 2;
  }
  const auto number = [&](std::size_t position) {
    return std::strtoull(arguments[position].c_str(), nullptr, 10);
  };
  const auto recorded = artesian::bench::record({.model = arguments[0],
                                                 .config = arguments[1],
                                                 .length = number(2),
                                                 .device = arguments[3],
                                                 .warm_up = number(4),
                                                 .steps = number(5),
                                                 .trace = arguments[6]});
  if (recorded.has_value()) return 0;
  std::fprintf(stderr, "profile_bench: error: %s\n", recorded.error().to_string().c_str());
  return 1;
}
