// `artesian export CHECKPOINT OUT`: the weights of a checkpoint as a Hugging Face directory,
// without an engine, using memory for only a few blocks.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/result.h"

namespace artesian::tools {

struct ExportOptions {
  std::string path;                              // a folder of checkpoints, or one of them
  std::string target;                            // the directory to create
  DType dtype = DType::Float32;                  // stored type of all tensors
  std::uint64_t shard_size_max = 5'000'000'000;  // bytes
};

void add_export_flags(CLI::App& command);
/// Reads the flags. Errors: Invalid, one line for each fault.
Result<ExportOptions> read_export_flags(const CLI::App& command);

/// Exports a checkpoint; the target is complete or does not exist. Errors: Invalid (no checkpoint,
/// a target that exists), Corrupt, NoSpace, Io.
Result<void> export_checkpoint(const ExportOptions& options);

}  // namespace artesian::tools
