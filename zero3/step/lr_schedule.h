// Learning-rate schedules with DeepSpeed's counter: optimizer step k (from 1) uses index k - 2, and
// a skipped step does not advance.
#pragma once

#include <cstdint>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// The learning rate of the optimizer step that follows `steps_taken` updates that were not
/// skipped.
double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept;

}  // namespace artesian::zero3
