// Learning-rate schedules with DeepSpeed's counter: optimizer step k (from 1) uses index k - 2, and
// a skipped step does not advance.
#pragma once

#include <cstdint>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// What a schedule leads a parameter group between.
struct RateEnds {
  double lr = 0.0;  // the group's own, before the schedule: WarmupCosineLR takes shares of it
  double warmup_min_lr = 0.0;
  double warmup_max_lr = 0.0;
};

/// A group's learning rate at the optimizer step that follows `steps_taken` updates that were not
/// skipped. Source: deepspeed/runtime/lr_schedules.py, 0.19.8.
double rate_between(const SchedulerConfig& scheduler, const RateEnds& ends,
                    std::uint64_t steps_taken) noexcept;

/// The same with the ends that the config names.
double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept;

}  // namespace artesian::zero3
