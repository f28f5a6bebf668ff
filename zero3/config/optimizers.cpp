#include "zero3/config/optimizers.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace artesian::zero3 {
namespace {

constexpr std::string_view adam_params =
    "lr|betas|eps|weight_decay|bias_correction|adam_w_mode|amsgrad|torch_adam|"
    "fp32_optimizer_states|max_grad_norm";

constexpr OptimizerForm forms[] = {
    {.type = OptimizerType::Adam, .name = "AdamW", .moments = {}, .params = adam_params},
    {.type = OptimizerType::Adam, .name = "Adam", .moments = {}, .params = adam_params},
    {.type = OptimizerType::Sgd,
     .name = "SGD",
     .moments = {.average = "momentum_buffer", .squares = ""},
     .params = "lr|momentum|dampening|nesterov|weight_decay"},
    {.type = OptimizerType::Adagrad,
     .name = "Adagrad",
     .moments = {.average = "", .squares = "sum"},
     .params = "lr|lr_decay|eps|weight_decay|initial_accumulator_value|amsgrad|"
               "fp32_optimizer_states",
     .lr = 1e-2,
     .eps = 1e-10},
    {.type = OptimizerType::RmsProp,
     .name = "RMSprop",
     .moments = {.average = "momentum_buffer", .squares = "square_avg"},
     .params = "lr|alpha|eps|momentum|centered|weight_decay",
     .lr = 1e-2},
    {.type = OptimizerType::Lion,
     .name = "Lion",
     .moments = {.average = "exp_avg", .squares = ""},
     .params = "lr|betas|weight_decay|fp32_optimizer_states"},
    {.type = OptimizerType::Lamb,
     .name = "Lamb",
     .moments = {},
     .params = "lr|betas|eps|weight_decay|bias_correction|min_coeff|max_coeff|eps_inside_sqrt|"
               "amsgrad|max_grad_norm"},
    {.type = OptimizerType::Muon,
     .name = "Muon",
     .moments = {},
     .params = "lr|muon_lr|adam_lr|betas|eps|weight_decay|momentum|ns_method|per_head_muon|"
               "adam_w_mode|torch_adam|fp32_optimizer_states",
     .lr = 3e-4,
     .eps = 1e-10,
     .beta2 = 0.95}};

bool same_in_any_case(std::string_view left, std::string_view right) noexcept {
  const auto lower = [](char letter) { return std::tolower(static_cast<unsigned char>(letter)); };
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](char one, char other) { return lower(one) == lower(other); });
}

const OptimizerForm& form_of(OptimizerType type) noexcept {
  const auto* found = std::find_if(std::begin(forms), std::end(forms),
                                   [&](const OptimizerForm& each) { return each.type == type; });
  ARTESIAN_CHECK(found != std::end(forms), static_cast<int>(type));
  return *found;
}

}  // namespace

std::span<const OptimizerForm> optimizer_forms() noexcept {
  return forms;
}

const OptimizerForm* find_optimizer(std::string_view name) noexcept {
  const auto* found =
      std::find_if(std::begin(forms), std::end(forms),
                   [&](const OptimizerForm& each) { return same_in_any_case(each.name, name); });
  return found == std::end(forms) ? nullptr : found;
}

Moments moments_of(const OptimizerConfig& config) noexcept {
  Moments moments = form_of(config.type).moments;
  if (config.type == OptimizerType::RmsProp && config.beta1 == 0.0) moments.average = "";
  return moments;
}

std::string_view type_name(const OptimizerConfig& config) noexcept {
  if (config.type == OptimizerType::Adam && !config.decoupled_decay) return "Adam";
  return form_of(config.type).name;
}

std::string saved_name(const OptimizerConfig& config) noexcept {
  std::string name(type_name(config));
  for (char& letter : name) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

bool has_betas(const OptimizerConfig& config) noexcept {
  return form_of(config.type).params.find("betas") != std::string_view::npos;
}

}  // namespace artesian::zero3
