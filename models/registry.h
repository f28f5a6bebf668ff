// Maps architectures to classes.
#pragma once

#include <memory>

#include "models/model_config.h"
#include "zero3/torch/module.h"

namespace artesian::models {

/// The module for a config that read_model_config() accepted. Never null.
std::unique_ptr<zero3::Module> make_module(const ModelConfig& config);

}  // namespace artesian::models
