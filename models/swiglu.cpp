#include "models/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/swiglu.h"
#include "models/kernel_call.h"

namespace artesian::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Shape: gate and up: contiguous.
kernels::GatedRows rows_of(const at::Tensor& gate, const at::Tensor& up) {
  const auto width = static_cast<std::uint64_t>(gate.size(-1));
  return {.gate = gate.const_data_ptr(),
          .up = up.const_data_ptr(),
          .dtype = dtype_of(gate),
          .rows = static_cast<std::uint64_t>(gate.numel()) / std::max<std::uint64_t>(width, 1),
          .width = width,
          .stride = width};
}

/// Shape: both: [..., 2 width], contiguous.
kernels::GatedRows rows_of(const at::Tensor& both) {
  kernels::GatedRows rows = rows_of(both, both);
  rows.width = rows.stride / 2;
  rows.up = advanced(rows.up, rows.width, rows.dtype);
  return rows;
}

kernels::GatedRows part_of(const kernels::GatedRows& all, std::uint64_t begin, std::uint64_t end) {
  kernels::GatedRows part = all;
  part.gate = advanced(all.gate, begin * all.stride, all.dtype);
  part.up = advanced(all.up, begin * all.stride, all.dtype);
  part.rows = end - begin;
  return part;
}

void run(const kernels::GatedRows& all, void* product, c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(device,
                   [&](auto stream) { return kernels::cuda::swiglu(all, product, stream); });
  }
#endif
  over_rows(device, all.rows, all.width, [&](std::uint64_t begin, std::uint64_t end) {
    kernels::swiglu(part_of(all, begin, end), advanced(product, begin * all.width, all.dtype));
  });
}

void run(const kernels::GatedRows& all, const kernels::SwigluGradient& gradient,
         c10::Device device) {
#ifdef ARTESIAN_HAVE_CUDA
  if (device.is_cuda()) {
    return enqueue(
        device, [&](auto stream) { return kernels::cuda::swiglu_gradient(all, gradient, stream); });
  }
#endif
  over_rows(device, all.rows, all.width, [&](std::uint64_t begin, std::uint64_t end) {
    kernels::swiglu_gradient(part_of(all, begin, end),
                             {.outer = advanced(gradient.outer, begin * all.width, all.dtype),
                              .gate = advanced(gradient.gate, begin * all.stride, all.dtype),
                              .up = advanced(gradient.up, begin * all.stride, all.dtype)});
  });
}

class Swiglu : public torch::autograd::Function<Swiglu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given_gate,
                            const at::Tensor& given_up) {
    TORCH_CHECK(given_gate.sizes() == given_up.sizes() &&
                    given_gate.scalar_type() == given_up.scalar_type(),
                "swiglu: got ", given_gate.sizes(), " and ", given_up.sizes(), ", allowed equal");
    const at::Tensor gate = given_gate.contiguous();
    const at::Tensor up = given_up.contiguous();
    const at::Tensor product = at::empty_like(gate);
    run(rows_of(gate, up), product.mutable_data_ptr(), gate.device());
    context->save_for_backward({gate, up});
    return product;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor outer = gradients[0].contiguous();
    const at::Tensor gate = at::empty_like(saved[0]);
    const at::Tensor up = at::empty_like(saved[1]);
    run(rows_of(saved[0], saved[1]),
        {.outer = outer.const_data_ptr(),
         .gate = gate.mutable_data_ptr(),
         .up = up.mutable_data_ptr()},
        outer.device());
    return {gate, up};
  }
};

class PackedSwiglu : public torch::autograd::Function<PackedSwiglu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given) {
    TORCH_CHECK(given.size(-1) % 2 == 0, "swiglu: got ", given.sizes(), ", allowed two halves");
    const at::Tensor both = given.contiguous();
    auto shape = both.sizes().vec();
    shape.back() /= 2;
    const at::Tensor product = at::empty(shape, both.options().requires_grad(false));
    run(rows_of(both), product.mutable_data_ptr(), both.device());
    context->save_for_backward({both});
    return product;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor both = context->get_saved_variables()[0];
    const at::Tensor outer = gradients[0].contiguous();
    const at::Tensor of_both = at::empty_like(both);
    const kernels::GatedRows rows = rows_of(both);
    void* gate = of_both.mutable_data_ptr();
    run(rows,
        {.outer = outer.const_data_ptr(),
         .gate = gate,
         .up = advanced(gate, rows.width, rows.dtype)},
        outer.device());
    return {of_both};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return Swiglu::apply(gate, up);
}

at::Tensor packed_swiglu(const at::Tensor& both) {
  return PackedSwiglu::apply(both);
}

}  // namespace artesian::models
