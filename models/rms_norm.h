// Root mean square normalisation (Zhang and Sennrich 2019) as one autograd function.
#pragma once

namespace at {
class Tensor;
}

namespace artesian::models {

/// weight * input / sqrt(mean(input^2) + epsilon) over the last dimension; the quotient is computed
/// in fp32 and rounded to the input's dtype before multiplication by the weight, as in
/// transformers' LlamaRMSNorm. Shape:    input, result: [..., width]; weight: [width], same dtype.
/// Bits:     a row's result depends on that row alone; the weight's gradient also on the number of
///           rows, but not on threads (kernels/rms_norm.h).
/// Memory:   keeps its input and one fp32 number per row for backward, which recomputes the
///           quotient; separate operations would keep the quotient, too.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon);

}  // namespace artesian::models
