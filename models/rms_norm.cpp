#include "models/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, double epsilon) {
    const at::Tensor wide = input.to(at::kFloat);
    const at::Tensor inverse = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    context->save_for_backward({input, weight, inverse});
    return (wide * inverse).to(input.scalar_type()).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse = saved[2];
    const at::Tensor quotient = input.to(at::kFloat) * inverse;
    const at::Tensor outer = gradients[0].to(at::kFloat);
    const at::Tensor weight_gradient = (outer * quotient).reshape({-1, weight.size(0)}).sum(0);
    const at::Tensor inner = outer * weight.to(at::kFloat);
    const at::Tensor along = (inner * quotient).mean(-1, /*keepdim=*/true);
    const at::Tensor input_gradient = (inner - quotient * along).mul_(inverse);
    return {input_gradient.to(input.scalar_type()), weight_gradient.to(weight.scalar_type()), {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(input, weight, epsilon);
}

}  // namespace artesian::models
