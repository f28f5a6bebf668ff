// The rows of a cross entropy one element at a time.
#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/element.h"
#include "kernels/exponential.h"
#include "kernels/lanes.h"

namespace artesian::kernels {

void cross_entropy_rows_naive(const CrossEntropyRows& all) noexcept {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const std::uint64_t first = row * all.vocabulary;
    const auto logit = [&](std::uint64_t i) {
      return load_element(all.logits, all.dtype, first + i);
    };
    float largest = -std::numeric_limits<float>::infinity();
    for (std::uint64_t i = 0; i < all.vocabulary; ++i) {
      largest = logit(i) > largest ? logit(i) : largest;
    }
    float lanes[cross_entropy_lanes] = {};
    for (std::uint64_t i = 0; i < all.vocabulary; ++i) {
      lanes[i % cross_entropy_lanes] += exponential(logit(i) - largest);
    }
    const auto target = static_cast<std::uint64_t>(all.targets[row]);
    all.sums[row] = lane_total(lanes);
    const bool within = target < all.vocabulary;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    all.picked[row] = within ? logit(target) - largest : nan;
    const float factor = within ? all.scale / all.sums[row] : nan;
    for (std::uint64_t i = 0; i < all.vocabulary; ++i) {
      float gradient = exponential(logit(i) - largest) * factor;
      if (i == target) gradient = gradient - all.scale;
      store_element(all.logits, all.dtype, first + i, gradient);
    }
  }
}

}  // namespace artesian::kernels
