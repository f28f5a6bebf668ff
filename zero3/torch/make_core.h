// make_core: the StepCore of an engine whose model computes with LibTorch's tensors, with
// everything that does not depend on who runs the model.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "zero3/step/step_core.h"
#include "zero3/torch/compute_device.h"

namespace artesian::zero3 {

/// Makes the core of a model that computes on `device`, which must be open. It chooses what the
/// config leaves open: the compute dtype, with a log line (if nothing is trained it is the
/// parameters' dtype, for the same bits as without Artesian), and the budgets, by choose_budgets
/// (engine.h), shared by the machine's `engines`. In `options` it sets these two, the device tier
/// and the lender of memory. The device's backend and the executor must outlive the core. Errors:
/// those of choose_compute_dtype and choose_budgets (engine.h), and of StepCore::create.
Result<std::unique_ptr<StepCore>> make_core(ModelShape shape, const Config& config,
                                            const ComputeDevice& device, StepCoreOptions options,
                                            Executor& executor, std::uint64_t engines = 1);

}  // namespace artesian::zero3
