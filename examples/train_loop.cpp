// Embedding the engine: your own loop, your own batches. Trains on numbers that count up; the
// README shows the heart of it. Usage: train_loop MODEL_DIRECTORY DEEPSPEED_CONFIG
#include <cstdio>
#include <numeric>
#include <vector>

#include "models/checkpoint_weights.h"
#include "models/registry.h"
#include "zero3/engine.h"

namespace {

using namespace artesian;

Result<void> train(const char* model_directory, const char* config_path) {
  constexpr std::uint64_t length = 32;
  ARTESIAN_TRY(model_config, models::read_model_config(model_directory));
  ARTESIAN_TRY(config, zero3::read_config(config_path, {}));
  const auto module = models::make_module(model_config);  // or a zero3::Module of your own
  ARTESIAN_TRY(engine,
               zero3::Engine::create(*module, config,
                                     {.samples = config.micro_batch_size, .length = length}));
  models::RandomWeights weights(module->parameters(), /*seed=*/1);
  ARTESIAN_TRY_VOID(engine->initialize(weights));

  std::vector<std::int64_t> ids(config.micro_batch_size * length);
  std::vector<std::int64_t> targets(ids.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(targets.begin(), targets.end(), 1);
  for (int step = 0; step < 10; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      ARTESIAN_TRY(loss, engine->forward_backward(ids, targets));
      std::printf("loss %.4f\n", loss);
    }
    ARTESIAN_TRY(result, engine->step());
    std::printf("step %llu: %.3f s, %llu bytes read from NVMe\n",
                static_cast<unsigned long long>(result.step), result.step_s,
                static_cast<unsigned long long>(result.bytes_nvme_read));
  }
  return engine->close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto outcome = train(argv[1], argv[2]);
  if (outcome.has_value()) return 0;
  std::fprintf(stderr, "%s\n", outcome.error().to_string().c_str());
  return 1;
}
