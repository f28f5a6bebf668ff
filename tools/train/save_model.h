// `artesian train --save`: the trained weights as a Hugging Face directory, streamed.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint_writer.h"
#include "models/model_config.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {

struct SaveOptions {
  std::string target;                    // the directory to create
  std::vector<models::ModelFile> files;  // the trained model's files, read before training
  bool fp32 = false;  // save the master weights instead of the training precision
};

/// Before training: reserves the space of the directory. Errors: Io, NoSpace, Invalid (the target
/// exists).
Result<models::CheckpointWriter> prepare_save(const zero3::Config& config,
                                              const models::ModelConfig& model_config,
                                              SaveOptions options);

/// Writes the directory of these options, and commits it. `writer`: null for a rank that only sends
/// its shares of the weights. Errors: Io, NoSpace, Invalid (the target was created meanwhile),
/// Corrupt.
Result<void> save_model(zero3::Engine& engine, const models::ModelConfig& model_config,
                        models::CheckpointWriter* writer);

}  // namespace artesian::tools
