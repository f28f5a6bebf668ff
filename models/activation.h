// Computes the activation functions.
#pragma once

#include "models/activation_name.h"

namespace at {
class Tensor;
}

namespace artesian::models {

/// Shape: input, result: any, equal.
at::Tensor activate(Activation activation, const at::Tensor& input);

}  // namespace artesian::models
