#include "models/joint_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the matrices as one, [total rows, width]: in place if they are adjacent, else as a copy.
at::Tensor side_by_side(const std::vector<at::Tensor>& matrices) {
  std::int64_t rows = 0;
  bool adjacent = true;
  const auto* end = static_cast<const std::byte*>(matrices.front().const_data_ptr());
  for (const at::Tensor& matrix : matrices) {
    rows += matrix.size(0);
    adjacent = adjacent && matrix.is_contiguous() && matrix.const_data_ptr() == end;
    end += matrix.nbytes();
  }
  if (!adjacent) return at::cat(matrices);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): it is read alone
  auto* const memory = const_cast<void*>(matrices.front().const_data_ptr());
  const at::Device device = matrices.front().device();
  return at::for_blob(memory, {rows, matrices.front().size(1)})
      .options(matrices.front().options().requires_grad(false))
      .target_device(device)
      .make_tensor();
}

class JointLinear : public torch::autograd::Function<JointLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& first, const at::Tensor& second,
                            const std::optional<at::Tensor>& third) {
    std::vector<at::Tensor> matrices{first, second};
    if (third.has_value()) matrices.push_back(*third);
    variable_list saved{input};
    saved.insert(saved.end(), matrices.begin(), matrices.end());
    context->save_for_backward(std::move(saved));
    return at::linear(input, side_by_side(matrices));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list matrices = context->get_saved_variables();
    const at::Tensor input = matrices.front();
    matrices.erase(matrices.begin());
    const at::Tensor outer = gradients[0].reshape({-1, gradients[0].size(-1)});
    variable_list made(4);
    if (context->needs_input_grad(0)) {
      made[0] = at::mm(outer, side_by_side(matrices)).view(input.sizes());
    }
    bool some = false;
    for (std::size_t index = 0; index < matrices.size(); ++index) {
      some = some || context->needs_input_grad(index + 1);
    }
    if (!some) return made;
    const at::Tensor all = at::mm(outer.t(), input.reshape({-1, input.size(-1)}));
    std::int64_t row = 0;
    for (std::size_t index = 0; index < matrices.size(); ++index) {
      made[index + 1] = all.narrow(0, row, matrices[index].size(0));
      row += matrices[index].size(0);
    }
    return made;
  }
};

}  // namespace

at::Tensor joint_linear(const at::Tensor& input, const std::vector<at::Tensor>& matrices) {
  TORCH_CHECK(matrices.size() == 2 || matrices.size() == 3, "joint_linear: got ", matrices.size(),
              " matrices, allowed 2 and 3");
  return JointLinear::apply(input, matrices[0], matrices[1],
                            matrices.size() == 3 ? std::optional(matrices[2]) : std::nullopt);
}

}  // namespace artesian::models
