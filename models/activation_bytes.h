// How much memory a step's activations take, by the formulas of docs/memory.md. It is an estimate,
// as LibTorch allocates activations outside of any budget.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_config.h"
#include "zero3/config/config.h"
#include "zero3/plan/kept_inputs.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

/// What forward keeps for backward. All: everything. BlockInputs: only the input of each block, as
/// a tensor; backward recomputes the block from it. InputsInTiers: the same, with inputs in a
/// tier's memory.
enum class Kept : std::uint8_t {
  All,
  BlockInputs,
  InputsInTiers
};  // InputsInTiers: not in a tensor

struct ActivationOptions {
  std::uint64_t tokens = 0;  // tokens per micro-batch
  std::uint64_t element_size = 4;
  std::uint64_t micro_batches = 1;  // per step; each leaves the gradients of its looked-up rows
  std::uint64_t at_once = 1;        // number of micro-batches that run at once, layer by layer
  Kept kept = Kept::All;
  std::uint64_t sums_of_attention = 0;  // in which attention's backward adds up: attention_sums()
};

/// How many gradients of queries, in fp32, a GPU's fused attention adds up at once in backward, in
/// 16 bit. If its bits must not vary, multiprocessors that share a sample's head have one each.
std::uint64_t attention_sums(const ModelConfig& config, std::uint64_t samples,
                             zero3::Determinism determinism);

/// Bytes of what the blocks keep for backward, the logits, and the tensors before the first and
/// after the last block. Gradients of parameters are not included.
std::uint64_t activation_bytes(const ModelConfig& config, const ActivationOptions& options);

/// The part of a run's configuration that its activations depend on.
struct ActivationRun {
  const ModelConfig* model = nullptr;
  const zero3::Config* config = nullptr;
  const std::vector<zero3::ParameterSpec>* parameters = nullptr;  // from model_parameters()
  const std::vector<zero3::StageSpec>* stages = nullptr;          // from model_stages()
  std::uint64_t tokens = 0;                                       // tokens per micro-batch
  DType compute_dtype = DType::Float32;
  std::uint64_t budget = 0;  // artesian.activation_memory
  bool gpu = false;
};

/// Bytes with `at_once` micro-batches. `staying`: bytes of kept inputs that are not in a tier.
std::uint64_t activations_of(const ActivationRun& run, std::uint64_t at_once,
                             std::uint64_t staying = 0);

/// The number of micro-batches that run layer by layer, by the engine's rule; the engine measures
/// the bytes of one micro-batch.
std::uint64_t micro_batches_at_once(const ActivationRun& run, const zero3::KeptInputs& inputs);

/// Bytes of a run whose whole host tier is available for kept inputs.
std::uint64_t planned_activations(const ActivationRun& run, std::uint64_t host_bytes);

/// [stages] elements of each stage's input for this many tokens, for EngineOptions.
std::vector<std::uint64_t> stage_input_elements(const ModelConfig& config, std::uint64_t tokens);

}  // namespace artesian::models
