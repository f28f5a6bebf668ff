#include "zero3/torch/make_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "zero3/torch/activation_memory.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/newton_schulz.h"

namespace artesian::zero3 {

Result<std::unique_ptr<StepCore>> make_core(ModelShape shape, const Config& config,
                                            const ComputeDevice& device, StepCoreOptions options,
                                            Executor& executor, std::uint64_t engines) {
  ARTESIAN_CHECK(device.backend != nullptr);
  const bool trains = std::any_of(shape.parameters.begin(), shape.parameters.end(),
                                  [](const auto& parameter) { return parameter.trainable; });
  const bool as_stored = !trains || device.native(config.param_dtype);
  ARTESIAN_TRY(compute_dtype, choose_compute_dtype(config, as_stored));
  tell_compute_dtype(config, compute_dtype);
  const std::string where = device.torch.str();
  const auto half = [&](const Budgets&) -> Result<std::uint64_t> {
    ARTESIAN_TRY(free, free_device_memory(where));
    return free.value_or(0) / 2;
  };
  // The activations of a caller's model are unknown; assume half of a GPU's memory.
  const PlannedActivations planned = options.hooked ? PlannedActivations(half) : nullptr;
  ARTESIAN_TRY(budgets, choose_budgets(config, where, planned, engines));
  options.compute_dtype = compute_dtype;
  options.budgets = budgets;
  options.device = device.backend;
  if (options.device_group == nullptr) options.device_group = device.group.get();
  options.orthogonalize = newton_schulz;
  options.lender = kept_activations();
  return StepCore::create(std::move(shape), config, options, executor);
}

}  // namespace artesian::zero3
