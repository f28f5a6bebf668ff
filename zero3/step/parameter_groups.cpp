#include "zero3/step/parameter_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "base/check.h"
#include "kernels/checksum.h"

namespace artesian::zero3 {
namespace {

constexpr double any = std::numeric_limits<double>::infinity();

struct Range {
  const char* key;
  std::optional<double> value;
  double below;  // allowed range: from 0 to below this value
};

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string name_of(std::size_t group) {
  return fmt::format("groups[{}]", group);
}

Result<void> check_range(const Range& range, const std::string& where) {
  if (!range.value.has_value() || (*range.value >= 0.0 && *range.value < range.below)) return {};
  const std::string allowed = range.below == 1.0 ? "0 to 1 exclusive" : "0 and more";
  return make_error(ErrorCode::Invalid, where + "." + range.key + ": got " + text_of(*range.value) +
                                            ", allowed " + allowed);
}

Result<void> check_ranges(const GroupOptions& group, const std::string& where) {
  for (const Range& range :
       {Range{"lr", group.lr, any}, Range{"weight_decay", group.weight_decay, any},
        Range{"beta1", group.beta1, 1.0}, Range{"beta2", group.beta2, 1.0},
        Range{"eps", group.eps, any}}) {
    ARTESIAN_TRY_VOID(check_range(range, where));
  }
  return {};
}

Result<void> check_group(const GroupOptions& group, const std::string& where,
                         const OptimizerConfig& config) {
  ARTESIAN_TRY_VOID(check_ranges(group, where));
  if (group.lr.has_value() && *group.lr != config.lr && config.lr == 0.0) {
    return make_error(ErrorCode::Invalid,
                      where + ".lr: got " + text_of(*group.lr) +
                          " where optimizer.params.lr is 0; a group's rate is a multiple of that");
  }
  return {};
}

kernels::Rule rule_of(OptimizerType type) noexcept {
  switch (type) {
    case OptimizerType::Adam:
    case OptimizerType::Muon: break;  // AdamW, for parameters that are not matrices
    case OptimizerType::Sgd: return kernels::Rule::Sgd;
    case OptimizerType::Adagrad: return kernels::Rule::Adagrad;
    case OptimizerType::RmsProp: return kernels::Rule::RmsProp;
    case OptimizerType::Lion: return kernels::Rule::Lion;
    case OptimizerType::Lamb: return kernels::Rule::Lamb;
  }
  return kernels::Rule::Adam;
}

}  // namespace

Result<void> check_groups(const std::vector<ParameterSpec>& parameters,
                          std::span<const GroupOptions> groups, const OptimizerConfig& config) {
  const std::size_t count = std::max<std::size_t>(groups.size(), 1);
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.group < count) continue;
    return make_error(ErrorCode::Invalid,
                      fmt::format("groups: got group {} of parameter \"{}\", allowed 0 to {} "
                                  "exclusive; give the engine options of each group",
                                  parameter.group, parameter.name, count));
  }
  for (std::size_t index = 0; index < groups.size(); ++index) {
    ARTESIAN_TRY_VOID(check_group(groups[index], name_of(index), config));
  }
  return {};
}

std::uint64_t digest_of(std::span<const GroupStep> groups) {
  std::string text;
  for (const auto& [lr, weight_decay, beta1, beta2, eps, dampening, nesterov, lr_decay, min_coeff,
                    max_coeff, matrix_lr, momentum] : groups) {
    text +=
        fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}\n", lr, weight_decay, beta1, beta2, eps,
                    dampening, nesterov, lr_decay, min_coeff, max_coeff, matrix_lr, momentum);
  }
  return kernels::checksum64(text.data(), text.size(), 0);
}

Result<void> check_group_steps(std::span<const GroupStep> groups, std::size_t count) {
  if (groups.size() != count) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("groups: got constants of {}, allowed {}", groups.size(), count));
  }
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const GroupStep& group = groups[index];
    const GroupOptions given{.lr = group.lr,
                             .weight_decay = group.weight_decay,
                             .beta1 = group.beta1,
                             .beta2 = group.beta2,
                             .eps = group.eps};
    ARTESIAN_TRY_VOID(check_ranges(given, name_of(index)));
    for (const Range& range :
         {Range{"dampening", group.dampening, any}, Range{"lr_decay", group.lr_decay, any},
          Range{"min_coeff", group.min_coeff, any}, Range{"max_coeff", group.max_coeff, any},
          Range{"muon_lr", group.matrix_lr, any}, Range{"momentum", group.momentum, 1.0}}) {
      ARTESIAN_TRY_VOID(check_range(range, name_of(index)));
    }
  }
  return {};
}

StepConstants make_step_constants(const OptimizerConfig& config,
                                  std::span<const GroupOptions> groups, double lr,
                                  double grad_multiplier) {
  StepConstants constants;
  constants.type = config.type;
  constants.mode = config.decoupled_decay ? kernels::AdamMode::AdamW : kernels::AdamMode::L2;
  constants.bias_correction = config.bias_correction;
  constants.newton_schulz = config.newton_schulz;
  constants.grad_multiplier = grad_multiplier;
  const GroupStep common{.lr = lr,
                         .weight_decay = config.weight_decay,
                         .beta1 = config.beta1,
                         .beta2 = config.beta2,
                         .eps = config.eps,
                         .dampening = config.dampening,
                         .nesterov = config.nesterov,
                         .lr_decay = config.lr_decay,
                         .min_coeff = config.min_coeff,
                         .max_coeff = config.max_coeff,
                         .matrix_lr = config.lr != 0.0 ? lr * (config.muon_lr / config.lr) : 0.0,
                         .momentum = config.momentum};
  if (groups.empty()) constants.groups.push_back(common);
  for (const GroupOptions& group : groups) {
    const bool moved = group.lr.has_value() && *group.lr != config.lr;
    ARTESIAN_CHECK(!moved || config.lr != 0.0, *group.lr);  // check_groups() has checked this
    GroupStep step = common;
    step.lr = moved ? lr * (*group.lr / config.lr) : lr;
    if (moved) step.matrix_lr *= *group.lr / config.lr;
    step.weight_decay = group.weight_decay.value_or(config.weight_decay);
    step.beta1 = group.beta1.value_or(config.beta1);
    step.beta2 = group.beta2.value_or(config.beta2);
    step.eps = group.eps.value_or(config.eps);
    constants.groups.push_back(step);
  }
  return constants;
}

kernels::UpdateStep make_update_step(const StepConstants& constants, std::uint32_t group,
                                     std::uint64_t count, bool matrix) noexcept {
  ARTESIAN_CHECK(group < constants.groups.size() && count != 0, group, count);
  const GroupStep& given = constants.groups[group];
  kernels::UpdateStep step{.rule = rule_of(constants.type)};
  kernels::AdamStep& common = step.constants;
  common.mode = constants.mode;
  common.learning_rate = static_cast<float>(given.lr);
  common.beta1 = static_cast<float>(given.beta1);
  common.beta2 = static_cast<float>(given.beta2);
  common.epsilon = static_cast<float>(given.eps);
  common.weight_decay = static_cast<float>(given.weight_decay);
  common.grad_multiplier = static_cast<float>(constants.grad_multiplier);
  if (matrix) {
    step.rule = kernels::Rule::Muon;
    step.nesterov = true;
    common.learning_rate = static_cast<float>(given.matrix_lr);
    common.beta1 = static_cast<float>(given.momentum);
  }
  switch (step.rule) {
    case kernels::Rule::Adam:
      common = kernels::make_adam_step(common, count, constants.bias_correction);
      break;
    case kernels::Rule::Sgd:  // the first gradient is the momentum
      step.nesterov = given.nesterov;
      if (count > 1 && given.beta1 != 0.0) {
        step.grad_share = static_cast<float>(1.0 - given.dampening);
      }
      break;
    case kernels::Rule::Adagrad: {
      const double decay = 1.0 + static_cast<double>(count - 1) * given.lr_decay;
      common.learning_rate = static_cast<float>(given.lr / decay);
      break;
    }
    case kernels::Rule::Lamb: {
      if (!constants.bias_correction) break;
      const double first = 1.0 - std::pow(given.beta1, static_cast<double>(count));
      const double second = 1.0 - std::pow(given.beta2, static_cast<double>(count));
      common.learning_rate = static_cast<float>(given.lr * std::sqrt(second) / first);
      break;
    }
    case kernels::Rule::RmsProp:
    case kernels::Rule::Lion:
    case kernels::Rule::Muon: break;
  }
  return step;
}

}  // namespace artesian::zero3
