#include "zero3/step/clip.h"

#include <limits>

namespace artesian::zero3 {

double clip_divisor(double norm, double clipping) noexcept {
  const double excess = (norm + 1e-6) / clipping;
  return clipping > 0 && excess > 1.0 ? excess : 1.0;
}

double sum_squares_unclipped(double clipping, double loss_scale) noexcept {
  const double norm_max = clipping > 0 ? clipping : std::numeric_limits<double>::infinity();
  return norm_max * loss_scale * norm_max * loss_scale;
}

}  // namespace artesian::zero3
