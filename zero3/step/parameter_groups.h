// Parameter groups: sets of parameters (ParameterSpec::group) with optimizer constants of their
// own, such as no weight decay for norms and biases. A group is unrelated to units: its borders may
// divide a unit, or a sub-group of optimizer state, between any two parameters. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/update.h"
#include "zero3/config/config.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

/// One group's constants; those not set are taken from the config (section "optimizer").
struct GroupOptions {
  /// The group's learning rate, in relation to optimizer.params.lr: at every step the group uses
  /// the schedule's rate times lr / optimizer.params.lr, so warm-up applies to it, too.
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<double> beta1{};  // as in OptimizerConfig; for some optimizers the momentum
  std::optional<double> beta2{};
  std::optional<double> eps{};
};

/// Checks that every parameter's group exists (an empty list means one group with the config's
/// constants), and that every constant is in its range. Errors: Invalid, of the first fault.
Result<void> check_groups(const std::vector<ParameterSpec>& parameters,
                          std::span<const GroupOptions> groups, const OptimizerConfig& config);

/// What happens to a parameter for which no micro-batch of a step has made a gradient.
enum class Unreached : std::uint8_t {
  GetsZeros,  // its gradient is zero: moments and weights decay, and the step counts, as in
              // DeepSpeed
  IsSkipped,  // its weights, moments and count do not change, as in torch.optim
};

/// One group's constants at one step.
struct GroupStep {
  double lr = 0.0;
  double weight_decay = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double lr_decay = 0.0;
  double min_coeff = 0.0;  // Lamb: bounds of the trust ratio
  double max_coeff = 0.0;
  double matrix_lr = 0.0;  // Muon: for matrices; used as it is
  double momentum = 0.0;

  bool operator==(const GroupStep&) const = default;
};

/// A digest of all constants, equal only for equal constants, so that ranks can compare them.
std::uint64_t digest_of(std::span<const GroupStep> groups);

/// Checks that these are the constants of `count` groups, all in range. Errors: Invalid, of the
/// first fault.
Result<void> check_group_steps(std::span<const GroupStep> groups, std::size_t count);

/// All constants of one step's update, except for each parameter's count of updates. They are fixed
/// at step(), even if options change while the update is under way.
struct StepConstants {
  std::vector<GroupStep> groups;  // by ParameterSpec::group
  OptimizerType type = OptimizerType::Adam;
  kernels::AdamMode mode = kernels::AdamMode::AdamW;
  bool bias_correction = true;
  NewtonSchulz newton_schulz = NewtonSchulz::Gram;
  double grad_multiplier = 1.0;  // factor applied to every gradient first
};

/// The constants of a step with the schedule's rate `lr`. Groups must have passed check_groups().
StepConstants make_step_constants(const OptimizerConfig& config,
                                  std::span<const GroupOptions> groups, double lr,
                                  double grad_multiplier);

/// Constants of the kernel for a parameter of this group at its `count`-th update, from 1.
/// `matrix`: Muon updates it as a whole matrix.
kernels::UpdateStep make_update_step(const StepConstants& constants, std::uint32_t group,
                                     std::uint64_t count, bool matrix = false) noexcept;

}  // namespace artesian::zero3
