#include "zero3/torch/adapted_module.h"

#include <ATen/core/Tensor.h>

namespace artesian::zero3 {

AdaptedModule::AdaptedModule(Module& module, const std::function<void(ParameterSpec&)>& change)
    : module_(module), parameters_(module.parameters()) {
  for (ParameterSpec& parameter : parameters_) change(parameter);
}

at::Tensor AdaptedModule::forward(std::size_t stage, const at::Tensor& input,
                                  const std::vector<at::Tensor>& parameters, const Batch& batch) {
  return module_.forward(stage, input, parameters, batch);
}

}  // namespace artesian::zero3
