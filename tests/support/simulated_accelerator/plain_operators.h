// Operators of the simulated accelerator that are no kernels: they make memory, views and copies.
#pragma once

#include <ATen/core/Tensor.h>

namespace artesian::test_support {

/// Fresh memory on a device, with the sizes, strides and dtype of `model`.
at::Tensor empty_like_on(c10::DeviceIndex device, const at::Tensor& model);

}  // namespace artesian::test_support
