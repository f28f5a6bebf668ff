// The middle of a gated MLP (Shazeer 2020, SwiGLU) in one autograd function.
#pragma once

namespace at {
class Tensor;
}

namespace artesian::models {

/// silu(gate) * up, rounded as the single operations are (kernels/swiglu.h).
/// Shape:    gate, up, result: [..., width], of one dtype.
/// Memory:   keeps gate and up for backward; composed of single operations it would keep
///           silu(gate), too.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The same of two halves of one matrix. Shape: both: [..., 2 width]: gate and then up.
at::Tensor packed_swiglu(const at::Tensor& both);

}  // namespace artesian::models
