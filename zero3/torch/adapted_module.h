// A module with other parameter groups, or with parameters frozen, than it was made with: for
// models that somebody else describes (models/registry.h). It computes what that one computes.
#pragma once

#include <functional>
#include <vector>

#include "zero3/torch/module.h"

namespace artesian::zero3 {

class AdaptedModule final : public Module {
 public:
  /// `change` gets each parameter once, now, and may set its `trainable` and its `group`. The
  /// module must outlive this one.
  AdaptedModule(Module& module, const std::function<void(ParameterSpec&)>& change);

  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return module_.stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override;

 private:
  Module& module_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace artesian::zero3
