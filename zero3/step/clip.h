// Clipping of gradients by their norm, as DeepSpeed does it: `gradient_clipping` is the largest
// norm used by the update; 0 or less disables clipping. Pure.
#pragma once

namespace artesian::zero3 {

/// Returns the divisor that reduces gradients with norm `norm` to at most `clipping`; 1 if nothing
/// is clipped. The norm must be finite. Source: deepspeed/runtime/zero/stage3.py,
/// unscale_and_clip_grads: max(1, (norm + 1e-6) / clipping).
double clip_divisor(double norm, double clipping) noexcept;

/// Returns the sum of squares of gradients, which include the factor `loss_scale`, above which they
/// are clipped (ignoring the 1e-6 above); infinity if clipping is off. As sums only grow, a part of
/// the gradients that exceeds this limit shows that the step will be clipped.
double sum_squares_unclipped(double clipping, double loss_scale) noexcept;

}  // namespace artesian::zero3
