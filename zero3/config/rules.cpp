#include <fmt/core.h>

#include <algorithm>

#include "base/split.h"
#include "zero3/config/keys.h"
#include "zero3/config/optimizers.h"
#include "zero3/config/resolve.h"

namespace artesian::zero3 {
namespace {

/// True if all of these keys are valid.
template <typename... Paths>
bool sound(const Settings& settings, const Paths&... paths) {
  return !(settings.broken(paths) || ...);
}

void check_precision(const Settings& settings, Faults& faults) {
  if (!sound(settings, "fp16.enabled", "bf16.enabled")) return;
  if (settings.boolean("fp16.enabled") && settings.boolean("bf16.enabled")) {
    faults.invalid(settings.name("bf16.enabled") + ": got true, allowed false while " +
                   settings.name("fp16.enabled") + " is true; enable one of the two");
  }
  if (!sound(settings, "data_types.grad_accum_dtype")) return;
  if (!settings.given("data_types.grad_accum_dtype")) return;
  const std::string type = settings.text("data_types.grad_accum_dtype");
  const bool is_fp16 = type == "fp16" || type == "float16";
  const bool is_bf16 = type == "bf16" || type == "bfloat16";
  if ((is_fp16 && !settings.boolean("fp16.enabled")) ||
      (is_bf16 && !settings.boolean("bf16.enabled"))) {
    faults.unsupported("data_types.grad_accum_dtype: got \"" + type +
                       "\", allowed fp32 or the parameters' type");
  }
}

void check_offload(const Settings& settings, const std::string& section, const char* legacy,
                   std::uint64_t stage_least, Faults& faults) {
  const std::string device_path = section + ".device";
  if (settings.given(legacy) && settings.given(section)) {
    faults.invalid(settings.name(legacy) + ": the old name of " + section + "; keep one");
    return;
  }
  if (!sound(settings, device_path, section, legacy, "zero_optimization.stage")) return;
  const bool by_legacy = settings.given(legacy) && settings.boolean(legacy);
  const std::string device = by_legacy ? "cpu" : settings.text(device_path);
  if (device == "none") return;
  const std::uint64_t stage = settings.integer("zero_optimization.stage");
  if (stage < stage_least) {
    const std::string where = by_legacy ? settings.name(legacy) : settings.name(device_path);
    const std::string got = by_legacy ? settings.typed(legacy) : "\"" + device + "\"";
    faults.invalid(
        fmt::format("{}: got {}, allowed {} at zero_optimization.stage {}; set the stage to {}",
                    where, got, by_legacy ? "false" : "none", stage, stage_least));
  }
  const std::string path_key = section + ".nvme_path";
  if (!sound(settings, path_key)) return;
  const JsonValue folders = settings.value(path_key);
  if (device == "nvme" && folders.elements.empty()) {
    const bool given = settings.given(path_key);
    faults.invalid(settings.name(path_key) + ": " +
                   (given ? "got " + settings.typed(path_key) : "missing") +
                   ", allowed a folder while device is \"nvme\"; set it");
  }
  for (const JsonValue& folder : folders.elements) {
    const auto same = [&](const JsonValue& other) { return other.text == folder.text; };
    if (std::count_if(folders.elements.begin(), folders.elements.end(), same) == 1) continue;
    faults.invalid(settings.name(path_key) + ": got " + print_json(folder) +
                   " twice, allowed each folder once; remove one");
    break;
  }
}

/// The schedules that have this parameter, separated by '|'; "" means all.
std::string_view schedules_with(std::string_view name) {
  if (name.starts_with("lr_range_test_")) return "LRRangeTest";
  if (name.starts_with("cycle_") || name.starts_with("decay_")) return "OneCycle";
  if (name == "warmup_min_lr" || name == "warmup_max_lr") return "WarmupLR|WarmupDecayLR";
  if (name == "warmup_min_ratio" || name == "cos_min_ratio") return "WarmupCosineLR";
  if (name == "total_num_steps") return "WarmupDecayLR|WarmupCosineLR";
  if (name.starts_with("warmup_")) return "WarmupLR|WarmupDecayLR|WarmupCosineLR";
  return "";
}

void check_scheduler(const Settings& settings, Faults& faults) {
  if (!settings.given("scheduler") || !sound(settings, "scheduler.type")) return;
  const std::string type = settings.text("scheduler.type");
  constexpr std::string_view params = "scheduler.params.";
  for (const ConfigKey& key : config_keys()) {
    if (!key.path.starts_with(params)) continue;
    if (!settings.given(key.path) && !settings.automatic(key.path)) continue;
    const std::string_view with = schedules_with(key.path.substr(params.size()));
    const auto types = split(with, '|');
    if (with.empty() || std::find(types.begin(), types.end(), type) != types.end()) continue;
    faults.invalid(settings.name(key.path) + ": no parameter of " + type + "; remove it");
  }
}

void check_optimizer(const Settings& settings, Faults& faults) {
  if (!sound(settings, "optimizer.type")) return;
  const OptimizerForm* form = find_optimizer(settings.text("optimizer.type"));
  if (form == nullptr) return;
  const auto has = split(form->params, '|');
  constexpr std::string_view params = "optimizer.params.";
  for (const ConfigKey& key : config_keys()) {
    if (!key.path.starts_with(params)) continue;
    if (!settings.given(key.path) && !settings.automatic(key.path)) continue;
    if (std::find(has.begin(), has.end(), key.path.substr(params.size())) != has.end()) continue;
    faults.invalid(
        fmt::format("{}: no parameter of {}; remove it", settings.name(key.path), form->name));
  }
  constexpr const char* least = "optimizer.params.min_coeff";
  constexpr const char* largest = "optimizer.params.max_coeff";
  if (sound(settings, least, largest) && settings.real(least) > settings.real(largest)) {
    faults.invalid(fmt::format("{}: got {}, allowed at most {}, which is {}", settings.name(least),
                               settings.typed(least), largest, settings.typed(largest)));
  }
  constexpr const char* nesterov = "optimizer.params.nesterov";
  if (!settings.given(nesterov) || !settings.boolean(nesterov)) return;
  if (!sound(settings, "optimizer.params.momentum", "optimizer.params.dampening")) return;
  if (settings.real("optimizer.params.momentum") > 0.0 &&
      settings.real("optimizer.params.dampening") == 0.0) {
    return;
  }
  faults.invalid(settings.name(nesterov) +
                 ": got true, allowed with a momentum above 0 and no dampening; set momentum");
}

void check_moments(const Settings& settings, Faults& faults) {
  if (!sound(settings, "artesian.moments", "fp16.enabled")) return;
  if (settings.text("artesian.moments") != "bf16" || !settings.boolean("fp16.enabled")) return;
  faults.invalid(settings.name("artesian.moments") + ": got \"bf16\", allowed \"fp32\" while " +
                 settings.name("fp16.enabled") + " is true; train in bf16 or fp32");
}

}  // namespace

void check_rules(const Settings& settings, Faults& faults) {
  check_precision(settings, faults);
  check_offload(settings, "zero_optimization.offload_param", "zero_optimization.cpu_offload_param",
                3, faults);
  check_offload(settings, "zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", 1,
                faults);
  check_scheduler(settings, faults);
  check_optimizer(settings, faults);
  check_moments(settings, faults);
}

}  // namespace artesian::zero3
