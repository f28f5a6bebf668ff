// How much memory a step's activations take, by the formulas of docs/memory.md: an estimate, as
// activations belong to LibTorch and no budget holds them.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_config.h"
#include "zero3/config/config.h"
#include "zero3/plan/kept_inputs.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

/// What forward keeps for backward. All: everything. BlockInputs: the input of each block alone, as
/// a tensor, from which the block is computed again. InputsInTiers: that in a tier's memory.
enum class Kept : std::uint8_t { All, BlockInputs, InputsInTiers };  // the last: in no tensor

struct ActivationOptions {
  std::uint64_t tokens = 0;  // tokens of a micro-batch
  std::uint64_t element_size = 4;
  std::uint64_t micro_batches = 1;  // of a step; each leaves the gradients of its looked-up rows
  std::uint64_t at_once = 1;        // how many of them run at once, layer by layer
  Kept kept = Kept::All;
};

/// Bytes of what the blocks keep for backward, the logits, and what lies at the ends. Gradients of
/// parameters are not in it.
std::uint64_t activation_bytes(const ModelConfig& config, const ActivationOptions& options);

/// The part of a run's configuration that its activations depend on.
struct ActivationRun {
  const ModelConfig* model = nullptr;
  const zero3::Config* config = nullptr;
  const std::vector<zero3::ParameterSpec>* parameters = nullptr;  // model_parameters()
  const std::vector<zero3::StageSpec>* stages = nullptr;          // model_stages()
  std::uint64_t tokens = 0;                                       // tokens of a micro-batch
  DType compute_dtype = DType::Float32;
  std::uint64_t budget = 0;  // artesian.activation_memory
};

/// Bytes with `at_once` micro-batches. `staying`: bytes of kept inputs that no tier takes.
std::uint64_t activations_of(const ActivationRun& run, std::uint64_t at_once,
                             std::uint64_t staying = 0);

/// How many micro-batches run layer by layer, as the engine decides it; it measures what one keeps.
std::uint64_t micro_batches_at_once(const ActivationRun& run, const zero3::KeptInputs& inputs);

/// Bytes of a run if all of its host tier were available for kept inputs.
std::uint64_t planned_activations(const ActivationRun& run, std::uint64_t host_bytes);

/// [stages] elements of each stage's input for this many tokens, for EngineOptions.
std::vector<std::uint64_t> stage_input_elements(const ModelConfig& config, std::uint64_t tokens);

}  // namespace artesian::models
