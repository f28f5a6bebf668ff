// Parameter groups: sets of parameters (ParameterSpec::group) with optimizer constants of their
// own, such as no weight decay for norms and biases. A group is no unit: its borders may cut one,
// and a sub-group of optimizer state, anywhere between two parameters. Pure.
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

/// One group's constants; those that are not set are the config's (section "optimizer").
struct GroupOptions {
  /// The group's learning rate where the config's is optimizer.params.lr: at every step it is
  /// lr / optimizer.params.lr times what the schedule says, so a warm-up warms it up, too.
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<double> beta1{};  // as in OptimizerConfig: of some, momentum
  std::optional<double> beta2{};
  std::optional<double> eps{};
};

/// Checks that every parameter has its group among these, where none means one of the config's, and
/// that every constant is in its range. Errors: Invalid, of the first fault.
Result<void> check_groups(const std::vector<ParameterSpec>& parameters,
                          std::span<const GroupOptions> groups, const OptimizerConfig& config);

/// Says what becomes of a parameter that no micro-batch of a step has given a gradient.
enum class Unreached : std::uint8_t {
  GetsZeros,  // its gradient is zero: moments decay, weights too, and the step counts, as DeepSpeed
  IsSkipped,  // its weights, moments and count stay as they are, as torch.optim
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
  double matrix_lr = 0.0;  // Muon: of matrices, as is
  double momentum = 0.0;

  bool operator==(const GroupStep&) const = default;
};

/// Of all constants: the same for the same ones alone, so that ranks can compare them.
std::uint64_t digest_of(std::span<const GroupStep> groups);

/// Checks that these are constants of `count` groups, all in range. Errors: Invalid, of the first
/// fault.
Result<void> check_group_steps(std::span<const GroupStep> groups, std::size_t count);

/// Everything that one step does to parameters, but for how many updates each has had: fixed when
/// the step is decided, whatever becomes of the options while the update is under way.
struct StepConstants {
  std::vector<GroupStep> groups;  // by ParameterSpec::group
  OptimizerType type = OptimizerType::Adam;
  kernels::AdamMode mode = kernels::AdamMode::AdamW;
  bool bias_correction = true;
  NewtonSchulz newton_schulz = NewtonSchulz::Gram;
  double grad_multiplier = 1.0;  // multiplies every gradient first
};

/// The constants of a step for which the schedule says `lr`. Groups have passed check_groups().
StepConstants make_step_constants(const OptimizerConfig& config,
                                  std::span<const GroupOptions> groups, double lr,
                                  double grad_multiplier);

/// Constants of the kernel for a parameter of this group that gets its `count`-th update, from 1.
/// `matrix`: it is one, which Muon updates as a whole.
kernels::UpdateStep make_update_step(const StepConstants& constants, std::uint32_t group,
                                     std::uint64_t count, bool matrix = false) noexcept;

}  // namespace artesian::zero3
