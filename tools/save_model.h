// `artesian train --save`: the trained weights as a Hugging Face directory, streamed.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint_writer.h"
#include "models/model_config.h"
#include "zero3/engine.h"

namespace artesian::tools {

struct SaveOptions {
  std::string target;                    // the directory to make
  std::vector<models::ModelFile> files;  // of the model that was trained, as before training
  bool fp32 = false;                     // the master weights, instead of the training precision
};

/// Bytes that the directory will take.
std::uint64_t save_size(const zero3::Config& config,
                        const std::vector<zero3::ParameterSpec>& parameters, bool fp32);

/// Errors: Io, NoSpace, Invalid (the target exists), Corrupt.
Result<void> save_model(zero3::Engine& engine, const models::ModelConfig& model_config,
                        const std::vector<zero3::ParameterSpec>& parameters, SaveOptions options);

}  // namespace artesian::tools
