// Gradient kernels one element at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/element.h"
#include "kernels/gradient.h"

namespace artesian::kernels {

bool accumulate_gradient_naive(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                               std::uint64_t count, Accumulate how) noexcept {
  bool finite = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float g = round_element(grad[i], grad_dtype);
    const float sum = how == Accumulate::Set ? g : load_element(acc, acc_dtype, i) + g;
    finite = finite && std::isfinite(round_element(sum, acc_dtype));
    store_element(acc, acc_dtype, i, sum);
  }
  return finite;
}

void sum_squares_naive(const void* data, DType dtype, std::uint64_t count,
                       double* leaf_sums) noexcept {
  for (std::uint64_t first = 0; first < count; first += norm_leaf) {
    const std::uint64_t end = std::min(first + norm_leaf, count);
    double lanes[16] = {};
    for (std::uint64_t i = first; i < end; ++i) {
      const auto x = static_cast<double>(load_element(data, dtype, i));
      lanes[i % 16] += x * x;
    }
    double total = lanes[0];
    for (int lane = 1; lane < 16; ++lane) total += lanes[lane];
    *leaf_sums++ = std::isnan(total) ? std::numeric_limits<double>::quiet_NaN() : total;
  }
}

}  // namespace artesian::kernels
