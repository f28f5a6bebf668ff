// make_core: the StepCore of an engine whose model computes with LibTorch's tensors, with all that
// does not depend on who runs the model.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "zero3/step/step_core.h"
#include "zero3/torch/compute_device.h"

namespace artesian::zero3 {

/// Makes the core of a model that computes on `device`, which is open, and chooses what the config
/// leaves open: the compute dtype, with a line in the log (where nothing is trained that is the
/// parameters', with the bits of who computes in it without us), and budgets, by choose_budgets
/// (engine.h), which `engines` of the process share. Of `options` it sets these
/// two, the device tier and the lender of memory. The device's backend and the executor must
/// outlive the core. Errors: those of choose_compute_dtype and choose_budgets (engine.h), and of
/// StepCore::create.
Result<std::unique_ptr<StepCore>> make_core(ModelShape shape, const Config& config,
                                            const ComputeDevice& device, StepCoreOptions options,
                                            Executor& executor, std::uint64_t engines = 1);

}  // namespace artesian::zero3
