#include "zero3/step/parameter_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "base/check.h"

namespace artesian::zero3 {
namespace {

constexpr double any = std::numeric_limits<double>::infinity();

struct Range {
  const char* key;
  std::optional<double> value;
  double below;  // 0 and more, and less than this
};

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string name_of(std::size_t group) {
  return fmt::format("groups[{}]", group);
}

Result<void> check_ranges(const GroupOptions& group, const std::string& where) {
  for (const Range& range :
       {Range{"lr", group.lr, any}, Range{"weight_decay", group.weight_decay, any},
        Range{"beta1", group.beta1, 1.0}, Range{"beta2", group.beta2, 1.0},
        Range{"eps", group.eps, any}}) {
    if (!range.value.has_value() || (*range.value >= 0.0 && *range.value < range.below)) continue;
    const std::string allowed = range.below == 1.0 ? "0 to 1 exclusive" : "0 and more";
    return make_error(ErrorCode::Invalid, where + "." + range.key + ": got " +
                                              text_of(*range.value) + ", allowed " + allowed);
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
  }
  return {};
}

StepConstants make_step_constants(const OptimizerConfig& config,
                                  std::span<const GroupOptions> groups, double lr,
                                  double grad_multiplier) {
  StepConstants constants;
  constants.mode = config.decoupled_decay ? kernels::AdamMode::AdamW : kernels::AdamMode::L2;
  constants.bias_correction = config.bias_correction;
  constants.grad_multiplier = grad_multiplier;
  const GroupStep common{.lr = lr,
                         .weight_decay = config.weight_decay,
                         .beta1 = config.beta1,
                         .beta2 = config.beta2,
                         .eps = config.eps};
  if (groups.empty()) constants.groups.push_back(common);
  for (const GroupOptions& group : groups) {
    const bool moved = group.lr.has_value() && *group.lr != config.lr;
    ARTESIAN_CHECK(!moved || config.lr != 0.0, *group.lr);  // check_groups() has seen to it
    constants.groups.push_back({.lr = moved ? lr * (*group.lr / config.lr) : lr,
                                .weight_decay = group.weight_decay.value_or(config.weight_decay),
                                .beta1 = group.beta1.value_or(config.beta1),
                                .beta2 = group.beta2.value_or(config.beta2),
                                .eps = group.eps.value_or(config.eps)});
  }
  return constants;
}

kernels::AdamStep make_adam_step(const StepConstants& constants, std::uint32_t group,
                                 std::uint64_t count) noexcept {
  ARTESIAN_CHECK(group < constants.groups.size() && count != 0, group, count);
  const GroupStep& given = constants.groups[group];
  kernels::AdamStep step;
  step.mode = constants.mode;
  step.learning_rate = static_cast<float>(given.lr);
  step.beta1 = static_cast<float>(given.beta1);
  step.beta2 = static_cast<float>(given.beta2);
  step.epsilon = static_cast<float>(given.eps);
  step.weight_decay = static_cast<float>(given.weight_decay);
  step.grad_multiplier = static_cast<float>(constants.grad_multiplier);
  return kernels::make_adam_step(step, count, constants.bias_correction);
}

}  // namespace artesian::zero3
