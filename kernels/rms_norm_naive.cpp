// The norm of rows one element at a time.
#include <cmath>

#include "kernels/element.h"
#include "kernels/lanes.h"
#include "kernels/rms_norm.h"

namespace artesian::kernels {

void rms_norm_naive(const RmsNormRows& all, void* output, float* inverses) noexcept {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const std::uint64_t first = row * all.width;
    const auto x = [&](std::uint64_t i) { return load_element(all.input, all.dtype, first + i); };
    float lanes[rms_norm_lanes] = {};
    for (std::uint64_t i = 0; i < all.width; ++i) lanes[i % rms_norm_lanes] += x(i) * x(i);
    const float mean = lane_total(lanes) / static_cast<float>(all.width);
    inverses[row] = 1.0f / std::sqrt(mean + all.epsilon);
    for (std::uint64_t i = 0; i < all.width; ++i) {
      const float quotient = round_element(x(i) * inverses[row], all.dtype);
      store_element(output, all.dtype, first + i,
                    quotient * load_element(all.weight, all.dtype, i));
    }
  }
}

void rms_norm_gradient_naive(const RmsNormRows& all, const RmsNormGradient& gradient) noexcept {
  const bool wanted = gradient.weight != nullptr;
  for (std::uint64_t k = 0; wanted && k < groups_of(all.rows) * all.width; ++k) {
    gradient.weight[k] = 0.0f;
  }
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const std::uint64_t first = row * all.width;
    const float inverse = gradient.inverses[row];
    const auto outer = [&](std::uint64_t i) {
      return load_element(gradient.outer, all.dtype, first + i);
    };
    const auto inner = [&](std::uint64_t i) {
      return outer(i) * load_element(all.weight, all.dtype, i);
    };
    const auto quotient = [&](std::uint64_t i) {
      return load_element(all.input, all.dtype, first + i) * inverse;
    };
    float lanes[rms_norm_lanes] = {};
    for (std::uint64_t i = 0; i < all.width; ++i) {
      lanes[i % rms_norm_lanes] += inner(i) * quotient(i);
    }
    const float along = lane_total(lanes) / static_cast<float>(all.width);
    float* sums = wanted ? gradient.weight + row / rows_per_group * all.width : nullptr;
    for (std::uint64_t i = 0; i < all.width; ++i) {
      store_element(gradient.input, all.dtype, first + i,
                    (inner(i) - quotient(i) * along) * inverse);
      if (wanted) sums[i] += outer(i) * quotient(i);
    }
  }
}

void sum_groups_naive(const float* source, std::uint64_t rows, std::uint64_t width,
                      float* target) noexcept {
  for (std::uint64_t k = 0; k < groups_of(rows) * width; ++k) target[k] = 0.0f;
  for (std::uint64_t k = 0; k < rows * width; ++k) {
    target[k / width / rows_per_group * width + k % width] += source[k];
  }
}

}  // namespace artesian::kernels
