// The middle of a gated MLP (Shazeer 2020, SwiGLU) as one autograd function.
#pragma once

namespace at {
class Tensor;
}

namespace artesian::models {

/// silu(gate) * up, rounded like the separate operations (kernels/swiglu.h). Shape:    gate, up,
/// result: [..., width], of one dtype. Memory:   keeps gate and up for backward; separate
/// operations would keep silu(gate), too.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The same for two halves of one matrix. Shape: both: [..., 2 width]: gate, then up.
at::Tensor packed_swiglu(const at::Tensor& both);

}  // namespace artesian::models
