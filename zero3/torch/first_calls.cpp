#include "zero3/torch/first_calls.h"

#include <ATen/Functions.h>

#include <mutex>

namespace artesian::zero3 {
namespace {

using Function = at::Tensor (*)(const at::Tensor&);

// The functions that ATen/cpu/vml.h passes to oneMKL.
constexpr Function functions[] = {at::acos,   at::asin, at::atan, at::cos,  at::erf,   at::erfc,
                                  at::erfinv, at::exp,  at::log,  at::log2, at::log10, at::sin,
                                  at::sqrt,   at::tan,  at::tanh, at::trunc};

}  // namespace

void make_first_calls() {
  static std::once_flag made;
  std::call_once(made, [] {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor one_element = at::full({1}, 0.5, dtype);
      for (const Function function : functions) function(one_element);
    }
  });
}

}  // namespace artesian::zero3
