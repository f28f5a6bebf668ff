// Clipping of gradients by their norm, as DeepSpeed does it: `gradient_clipping` is the largest
// norm that the update gets, 0 or less means that nothing is clipped. Pure.
#pragma once

namespace artesian::zero3 {

/// Returns what all gradients are divided by so that their norm, which is `norm` now, does not
/// exceed `clipping`: 1 where nothing is clipped. A norm that is not finite has no use here.
/// Source: deepspeed/runtime/zero/stage3.py, unscale_and_clip_grads: max(1, (norm + 1e-6) /
/// clipping).
double clip_divisor(double norm, double clipping) noexcept;

/// Returns the sum of squares of gradients, multiplied by `loss_scale`, above which they are
/// clipped, but for the 1e-6 above; infinity where nothing is. As sums only grow, a part of the
/// gradients that exceeds it tells that the step will be clipped.
double sum_squares_unclipped(double clipping, double loss_scale) noexcept;

}  // namespace artesian::zero3
