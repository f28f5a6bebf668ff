#include "models/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/rms_norm.h"
#include "models/kernel_call.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Shape: input: [..., width], contiguous; weight: [width].
kernels::RmsNormRows rows_of(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  const auto width = static_cast<std::uint64_t>(weight.numel());
  return {.input = input.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .dtype = dtype_of(input),
          .rows = static_cast<std::uint64_t>(input.numel()) / std::max<std::uint64_t>(width, 1),
          .width = width,
          .epsilon = static_cast<float>(epsilon)};
}

void run(const kernels::RmsNormRows& all, void* output, float* inverses, c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(device, [&](auto stream) {
      return kernels::cuda::rms_norm(all, output, inverses, stream);
    });
  }
#endif
  over_rows(device, all.rows, all.width, [&](std::uint64_t begin, std::uint64_t end) {
    kernels::RmsNormRows part = all;
    part.input = advanced(all.input, begin * all.width, all.dtype);
    part.rows = end - begin;
    kernels::rms_norm(part, advanced(output, begin * all.width, all.dtype), inverses + begin);
  });
}

void run(const kernels::RmsNormRows& all, const kernels::RmsNormGradient& gradient,
         c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(device, [&](auto stream) {
      return kernels::cuda::rms_norm_gradient(all, gradient, stream);
    });
  }
#endif
  // Divided at whole groups of rows, so that no sum is cut.
  constexpr std::uint64_t group = kernels::rows_per_group;
  over_rows(device, kernels::groups_of(all.rows), group * all.width,
            [&](std::uint64_t begin, std::uint64_t end) {
              const std::uint64_t first = begin * group;
              const std::uint64_t elements = first * all.width;
              kernels::RmsNormRows part = all;
              part.input = advanced(all.input, elements, all.dtype);
              part.rows = std::min(end * group, all.rows) - first;
              kernels::RmsNormGradient out = gradient;
              out.inverses += first;
              out.outer = advanced(gradient.outer, elements, all.dtype);
              out.input = advanced(gradient.input, elements, all.dtype);
              if (out.weight != nullptr) out.weight += begin * all.width;
              kernels::rms_norm_gradient(part, out);
            });
}

/// The sum of all rows, in groups of groups. Shape: sums: [rows, width] in fp32; result: [width].
at::Tensor total(at::Tensor sums) {
  if (sums.size(0) == 0) return at::zeros({sums.size(1)}, sums.options());
  const auto width = static_cast<std::uint64_t>(sums.size(1));
  while (sums.size(0) > 1) {
    const auto rows = static_cast<std::uint64_t>(sums.size(0));
    const auto groups = static_cast<std::int64_t>(kernels::groups_of(rows));
    const at::Tensor fewer = at::empty({groups, sums.size(1)}, sums.options());
    const float* source = sums.const_data_ptr<float>();
    float* target = fewer.mutable_data_ptr<float>();
#ifdef ARTESIAN_HAVE_CUDA
    if (sums.is_cuda()) {
      enqueue(sums.device(), [&](auto stream) {
        return kernels::cuda::sum_groups(source, rows, width, target, stream);
      });
      sums = fewer;
      continue;
    }
#endif
    kernels::sum_groups(source, rows, width, target);
    sums = fewer;
  }
  return sums.view({sums.size(1)});
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given,
                            const at::Tensor& weight, double epsilon) {
    TORCH_CHECK(weight.dim() == 1 && given.size(-1) == weight.size(0) &&
                    given.scalar_type() == weight.scalar_type(),
                "rms_norm: got ", given.sizes(), " and ", weight.sizes(),
                ", allowed one width and dtype");
    const at::Tensor input = given.contiguous();
    const at::Tensor factors = weight.contiguous();
    const at::Tensor output = at::empty_like(input);
    const std::int64_t rows = input.numel() / std::max<std::int64_t>(weight.size(0), 1);
    const at::Tensor inverses = at::empty({rows}, input.options().dtype(at::kFloat));
    run(rows_of(input, factors, epsilon), output.mutable_data_ptr(),
        inverses.mutable_data_ptr<float>(), input.device());
    context->save_for_backward({input, factors, inverses});
    context->saved_data["epsilon"] = epsilon;
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor outer = gradients[0].contiguous();
    const at::Tensor of_input = at::empty_like(input);
    const auto rows = rows_of(input, weight, context->saved_data["epsilon"].toDouble());
    at::Tensor sums;
    if (context->needs_input_grad(1)) {
      const auto groups = static_cast<std::int64_t>(kernels::groups_of(rows.rows));
      sums = at::empty({groups, weight.size(0)}, saved[2].options());
    }
    run(rows,
        {.inverses = saved[2].const_data_ptr<float>(),
         .outer = outer.const_data_ptr(),
         .input = of_input.mutable_data_ptr(),
         .weight = sums.defined() ? sums.mutable_data_ptr<float>() : nullptr},
        input.device());
    return {of_input, sums.defined() ? total(sums).to(weight.scalar_type()) : sums, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(input, weight, epsilon);
}

}  // namespace artesian::models
