// Updates elements by any elementwise optimizer: Adam (kernels/adam.h) and the rules below. All
// rules use the same arrays and forms. A step has the same bits on every dispatch target and
// device, however it is cut into slices.
#pragma once

#include <cstdint>

#include "kernels/adam.h"

namespace artesian::kernels {

enum class Rule : std::uint8_t { Adam, Sgd, Adagrad, RmsProp, Lion, Lamb, Muon };

/// True if the rule keeps an average of squares, in AdamArrays::exp_avg_sq. Split master weights
/// keep their tie bit there; for other rules see settle_tie() in split_master.h.
constexpr bool has_squares(Rule rule) noexcept {
  return rule != Rule::Sgd && rule != Rule::Lion && rule != Rule::Muon;
}

/// The constants of one step. Adam uses all of `constants`. For the other rules, beta1 is the
/// momentum of Sgd and RmsProp, and beta2 is RmsProp's alpha; `mode`, `step_size` and
/// `denominator_multiplier` are not used.
struct UpdateStep {
  Rule rule = Rule::Adam;
  AdamStep constants{};
  float grad_share = 1.0f;  // Sgd: the gradient's factor in the momentum, 1 - dampening
  bool nesterov = false;    // for Sgd and Muon

  bool operator==(const UpdateStep&) const = default;
};

/// Updates `count` elements in place. `exp_avg` is the rule's momentum or average; null for RmsProp
/// without momentum. Adam: as adam_step. The others in fp32, in this order, each operation rounded
/// on its own:
///   g = grad * grad_multiplier;   except for Lion, Lamb and Muon: g = g + weight_decay * p
///   Sgd:     m = beta1 * m + grad_share * g;   u = nesterov ? g + beta1 * m : m
///   Adagrad: v = v + g * g;   u = g / (sqrt(v) + epsilon)
///   RmsProp: v = beta2 * v + ((1 - beta2) * g) * g;   u = g / (sqrt(v) + epsilon)
///            with exp_avg: m = beta1 * m + u;   u = m
///   Lion:    c = beta1 * m + (1 - beta1) * g;   m = beta2 * m + (1 - beta2) * g
///            p = p - (learning_rate * weight_decay) * p;   u = sign(c), with sign(0) = 0
///   Lamb:    m = beta1 * m + (1 - beta1) * g;   v = beta2 * v + ((1 - beta2) * g) * g
///            u = m / (sqrt(v) + epsilon) + weight_decay * p
///   Muon:    p = p - (learning_rate * weight_decay) * p;   u = g, from muon_direction
///   p = p - learning_rate * u
/// If the rule has no squares and `param_out` is BFloat16, p is then settled (settle_tie). Thread:
/// any, for disjoint slices. Source: torch.optim of PyTorch 2.9 for Sgd, Adagrad and RmsProp; Chen
/// et al. 2023, Algorithm 2, for Lion; DeepSpeed's fused_lamb_cuda_kernel.cu for Lamb, whose
/// learning_rate includes the bias correction and the trust ratio.
void update(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) noexcept;

/// The naive version, which equals update bit for bit.
void update_naive(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) noexcept;

/// Computes Lamb's update without applying it: weights[i] = p, directions[i] = u. Shape: both
/// [count]. The same bits on every dispatch target.
void lamb_direction(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step,
                    float* weights, float* directions) noexcept;

/// Computes the direction that Muon then orthogonalizes, with g = grad * grad_multiplier, grad of
/// grad_dtype:
///   m = m + (1 - beta1) * (g - m);   direction = nesterov ? g + beta1 * (m - g) : m
/// Shape: all [count]. The same bits on every dispatch target. Source: DeepSpeed's muon_update.
void muon_direction(const void* grad, DType grad_dtype, std::uint64_t count, const UpdateStep& step,
                    float* average, float* direction) noexcept;

/// The naive version, which equals muon_direction bit for bit.
void muon_direction_naive(const void* grad, DType grad_dtype, std::uint64_t count,
                          const UpdateStep& step, float* average, float* direction) noexcept;

/// The naive version, which equals lamb_direction bit for bit.
void lamb_direction_naive(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step,
                          float* weights, float* directions) noexcept;

}  // namespace artesian::kernels
