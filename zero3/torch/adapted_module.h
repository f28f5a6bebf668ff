// Wraps a module to change its parameter groups or to freeze parameters, for modules made elsewhere
// (models/registry.h). It computes the same function.
#pragma once

#include <functional>
#include <vector>

#include "zero3/torch/module.h"

namespace artesian::zero3 {

class AdaptedModule final : public Module {
 public:
  /// `change` is called once for each parameter, in the constructor, and may set its `trainable`
  /// and `group`. The module must outlive this object.
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
