// Root mean square normalisation (Zhang and Sennrich 2019) in one autograd function.
#pragma once

namespace at {
class Tensor;
}

namespace artesian::models {

/// weight * input / sqrt(mean(input^2) + epsilon) over the last dimension; the quotient in fp32,
/// rounded to the input's dtype before the weight comes in, as transformers' LlamaRMSNorm.
/// Shape:    input, result: [..., width]; weight: [width], same dtype.
/// Bits:     a row's depend on that row alone; those of the weight's gradient on the number of rows
///           too, not on threads (kernels/rms_norm.h).
/// Memory:   keeps its input and one fp32 number a row for backward, which computes the quotient
///           again; composed of single operations it would keep the quotient, too.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon);

}  // namespace artesian::models
