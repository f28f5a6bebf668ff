#include "zero3/torch/make_core.h"

#include <utility>

#include "base/check.h"
#include "zero3/torch/activation_memory.h"
#include "zero3/torch/engine.h"

namespace artesian::zero3 {

Result<std::unique_ptr<StepCore>> make_core(ModelShape shape, const Config& config,
                                            const ComputeDevice& device, StepCoreOptions options,
                                            Executor& executor) {
  ARTESIAN_CHECK(device.backend != nullptr);
  ARTESIAN_TRY(compute_dtype, choose_compute_dtype(config, device.native(config.param_dtype)));
  tell_compute_dtype(config, compute_dtype);
  ARTESIAN_TRY(budgets, choose_budgets(config, device.torch.str()));
  options.compute_dtype = compute_dtype;
  options.budgets = budgets;
  options.device = device.backend;
  options.lender = kept_activations();
  return StepCore::create(std::move(shape), config, options, executor);
}

}  // namespace artesian::zero3
