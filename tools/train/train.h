// `artesian train`: from flags to a finished run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/model_config.h"
#include "tools/train/checkpointing.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {

struct TrainOptions {
  std::string model;
  std::vector<std::string> data;          // files and folders that form one stream of tokens
  std::optional<std::string> text_field;  // the field with the text in JSON lines
  bool token_cache = true;
  std::vector<std::string> eval_data;       // empty: no held-out loss
  std::optional<std::uint64_t> eval_every;  // steps; absent: only at the end
  std::string config;
  std::optional<std::uint64_t> steps;
  std::optional<std::uint64_t> epochs;
  std::optional<std::uint64_t> length;  // --seq-len
  std::uint64_t seed = 0;
  bool shuffled = true;
  std::string device = "cpu";
  double rank_timeout = 600.0;  // seconds
  bool random_weights = false;  // --init
  std::optional<std::uint64_t> micro_batch;
  std::optional<std::uint64_t> accumulation;
  std::optional<double> lr;
  std::string save;
  bool save_fp32 = false;
  std::string log_jsonl;  // "-": stdout
  std::string trace;
  CheckpointFlags checkpoints;
  bool quiet = false;
};

/// A run that is about to allocate memory.
struct RunMemory {
  const zero3::Config* config = nullptr;
  const models::ModelConfig* model = nullptr;
  std::uint64_t length = 0;  // tokens per sample
  std::string device = "cpu";
  zero3::Budgets budgets;
  std::uint64_t ranks = 1;  // number of ranks, including this one
};

/// Called before memory is allocated, as the kernel would later kill the process: errors end the
/// run.
using CheckMemory = std::function<Result<void>(const RunMemory& run)>;

/// Runs the training and returns the exit code: 0; 2 for errors found before the first step; 1 for
/// later ones, or if every step was skipped; 128 + signal after a stop. Errors are printed to
/// stderr, followed by how the run ended.
int train(const TrainOptions& options, const CheckMemory& check_memory);

}  // namespace artesian::tools
