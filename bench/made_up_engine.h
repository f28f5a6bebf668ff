// An engine on a model with random weights, as used by benchmarks that train.
#pragma once

#include <memory>
#include <string>

#include "models/registry.h"
#include "zero3/step/config_file.h"
#include "zero3/step/weights.h"
#include "zero3/torch/engine.h"

namespace artesian::bench {

struct MadeUpEngine {
  models::ModelConfig model;
  std::unique_ptr<zero3::Module> module;
  std::unique_ptr<zero3::Engine> engine;  // declared after its module, so destroyed before it
};

/// Makes the engine of the model in a folder, with a configuration file, and fills its home tiers.
inline Result<MadeUpEngine> make_engine(const std::string& model_folder, const std::string& config,
                                        const zero3::EngineOptions& options) {
  MadeUpEngine made;
  ARTESIAN_TRY(model, models::read_model_config(model_folder));
  ARTESIAN_TRY(settings, zero3::read_config(config, {}));
  made.model = std::move(model);
  made.module = models::make_module(made.model);
  ARTESIAN_TRY(engine, zero3::Engine::create(*made.module, settings, options));
  made.engine = std::move(engine);
  zero3::RandomWeights weights(made.module->parameters(), 1);
  ARTESIAN_TRY_VOID(made.engine->initialize(weights));
  return made;
}

}  // namespace artesian::bench
