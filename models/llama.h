// Llama and its relatives as engine modules: looked-up rows, one stage per block, and a head that
// ends in the mean cross entropy. Compute the same functions as transformers' LlamaForCausalLM,
// MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and Phi3ForCausalLM; bit-identical for the
// same number of threads.
#pragma once

#include <vector>

#include "models/llama_config.h"
#include "models/rotary.h"
#include "zero3/torch/module.h"

namespace artesian::models {

class Llama final : public zero3::Module {
 public:
  explicit Llama(const LlamaConfig& config);

  const std::vector<zero3::ParameterSpec>& parameters() const noexcept override {
    return parameters_;
  }
  const std::vector<zero3::StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const zero3::Batch& batch) override;

 private:
  at::Tensor embed(const at::Tensor& rows, const at::Tensor& ids) const;
  at::Tensor block(const at::Tensor& input, const std::vector<at::Tensor>& parameters);

  LlamaConfig config_;
  std::vector<zero3::ParameterSpec> parameters_;
  std::vector<zero3::StageSpec> stages_;
  Rotary rotary_;
};

}  // namespace artesian::models
