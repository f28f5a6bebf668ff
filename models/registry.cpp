#include "models/registry.h"

#include "base/check.h"
#include "models/gpt2.h"
#include "models/llama.h"

namespace artesian::models {

std::unique_ptr<zero3::Module> make_module(const ModelConfig& config) {
  if (config.is_llama()) return std::make_unique<Llama>(config.llama);
  ARTESIAN_CHECK(config.model_type == "gpt2");
  return std::make_unique<Gpt2>(config.gpt2);
}

}  // namespace artesian::models
