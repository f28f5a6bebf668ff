// The activation functions that config.json names.
#pragma once

#include "models/gpt2_config.h"

namespace at {
class Tensor;
}

namespace artesian::models {

/// Shape: input, result: any, equal.
at::Tensor activate(Activation activation, const at::Tensor& input);

}  // namespace artesian::models
