// GPT-2 as an engine module: stage 0 adds positions to the looked-up rows, one stage per block, and
// a head that ends in the mean cross entropy. Computes the same function as transformers'
// GPT2LMHeadModel; bit-identical for the same number of threads.
#pragma once

#include <vector>

#include "models/gpt2_config.h"
#include "zero3/torch/module.h"

namespace artesian::models {

class Gpt2 final : public zero3::Module {
 public:
  explicit Gpt2(const Gpt2Config& config);

  const std::vector<zero3::ParameterSpec>& parameters() const noexcept override {
    return parameters_;
  }
  const std::vector<zero3::StageSpec>& stages() const noexcept override { return stages_; }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const zero3::Batch& batch) override;

 private:
  at::Tensor block(std::size_t layer, const at::Tensor& input,
                   const std::vector<at::Tensor>& parameters) const;
  at::Tensor attend(std::size_t layer, const at::Tensor& joined) const;

  Gpt2Config config_;
  std::vector<zero3::ParameterSpec> parameters_;
  std::vector<zero3::StageSpec> stages_;
};

}  // namespace artesian::models
