#include "models/activation_bytes.h"

#include <algorithm>

#include "zero3/plan/make_placement.h"
#include "zero3/plan/step_accesses.h"

namespace artesian::models {
namespace {

// Large GPUs, such as an H100 or H200, have as many; smaller ones have fewer, and need less memory.
constexpr std::uint64_t multiprocessors = 132;

Kept kept(const zero3::Config& config) {
  if (!config.activation_checkpointing) return Kept::All;
  return config.cpu_checkpointing ? Kept::InputsInTiers : Kept::BlockInputs;
}

}  // namespace

std::uint64_t attention_sums(const ModelConfig& config, std::uint64_t samples,
                             zero3::Determinism determinism) {
  if (determinism == zero3::Determinism::Preferred) return 1;
  const auto heads =
      static_cast<std::uint64_t>(config.is_llama() ? config.llama.heads : config.gpt2.heads);
  const std::uint64_t shared = std::max<std::uint64_t>(samples * heads, 1);
  return (multiprocessors + shared - 1) / shared;
}

std::uint64_t activation_bytes(const ModelConfig& config, const ActivationOptions& options) {
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  const auto layers = static_cast<std::uint64_t>(layer_count(config));
  const std::uint64_t tokens = options.tokens;
  const std::uint64_t size = options.element_size;
  std::uint64_t block = 0;  // elements per token in one block
  std::uint64_t attention = hidden;
  std::uint64_t mlp = 2 * hidden;  // the part of the block's MLP and its norm
  if (config.is_llama()) {
    attention = static_cast<std::uint64_t>(config.llama.heads * config.llama.head);
    // Gate, up and their product; silu() of the gate is in no tensor (models/swiglu.h).
    const std::uint64_t gated = config.llama.activation == Activation::Silu ? 3 : 4;
    mlp += gated * static_cast<std::uint64_t>(config.llama.inner);
    block = 2 * hidden + 4 * attention + mlp;
    if (config.llama.head_norms) {  // the queries and keys before normalization
      block +=
          attention + static_cast<std::uint64_t>(config.llama.key_value_heads * config.llama.head);
    }
  } else {
    mlp += 2 * static_cast<std::uint64_t>(config.gpt2.inner);
    block = 6 * hidden + mlp;
  }
  const std::uint64_t logits = size * tokens * static_cast<std::uint64_t>(config.vocab_size);
  const std::uint64_t ends = size * tokens * hidden * 4;
  const std::uint64_t rows = 4 * tokens * hidden * options.micro_batches;
  // In the backward of the last block, after that of its MLP: without logits and the MLP's tensors.
  std::uint64_t sums = 4 * tokens * attention * options.sums_of_attention;
  sums -= std::min(sums, size * tokens * mlp);
  if (options.kept == Kept::All) {
    return options.at_once * (size * tokens * block * layers + ends) +
           std::max(options.at_once * logits, sums) + rows;
  }
  const std::uint64_t boundary = size * tokens * hidden;
  if (options.kept == Kept::InputsInTiers) {  // outputs of a stage, gradients; its own, or the rows
    const std::uint64_t own = std::max(size * tokens * block + sums, logits);
    return std::max(options.at_once * boundary * 2 + own, options.at_once * boundary + rows);
  }
  const std::uint64_t inputs = options.at_once * (boundary * layers + ends);
  // Memory of one block, while it runs.
  return inputs + size * tokens * block + std::max(logits, sums) + rows;
}

std::uint64_t activations_of(const ActivationRun& run, std::uint64_t at_once,
                             std::uint64_t staying) {
  ActivationOptions options{.tokens = run.tokens,
                            .element_size = dtype_size(run.compute_dtype),
                            .micro_batches = run.config->accumulation_steps,
                            .at_once = at_once,
                            .kept = kept(*run.config)};
  if (run.gpu && run.compute_dtype != DType::Float32) {
    options.sums_of_attention =
        attention_sums(*run.model, run.config->micro_batch_size, run.config->artesian.determinism);
  }
  return staying + activation_bytes(*run.model, options);
}

std::uint64_t micro_batches_at_once(const ActivationRun& run, const zero3::KeptInputs& inputs) {
  if (inputs.some()) return inputs.at_once;
  if (!zero3::keeps_order(*run.stages)) return 1;
  const std::uint64_t of_one = std::max<std::uint64_t>(activations_of(run, 1), 1);
  return std::clamp<std::uint64_t>(run.budget / of_one, 1, run.config->accumulation_steps);
}

std::uint64_t planned_activations(const ActivationRun& run, std::uint64_t host_bytes) {
  const zero3::KeptInputs inputs =
      zero3::most_inputs({.parameters = run.parameters,
                          .stages = run.stages,
                          .config = run.config,
                          .compute_dtype = run.compute_dtype,
                          .host_bytes = host_bytes,
                          .input_elements = stage_input_elements(*run.model, run.tokens),
                          .activation_bytes = run.budget});
  return activations_of(run, micro_batches_at_once(run, inputs));
}

std::vector<std::uint64_t> stage_input_elements(const ModelConfig& config, std::uint64_t tokens) {
  // With the stages of the embedding and the head.
  const std::size_t stages = static_cast<std::size_t>(layer_count(config)) + 2;
  return std::vector<std::uint64_t>(stages, tokens * static_cast<std::uint64_t>(config.hidden));
}

}  // namespace artesian::models
