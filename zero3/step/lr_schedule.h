// Learning-rate schedules with DeepSpeed's counter: optimizer step k (from 1) uses index k - 2, and
// a skipped step does not advance.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// What a schedule leads a parameter group between.
struct RateEnds {
  double lr = 0.0;    // the group's own, before the schedule: WarmupCosineLR takes shares of it
  double low = 0.0;   // warmup_min_lr, lr_range_test_min_lr or cycle_min_lr
  double high = 0.0;  // warmup_max_lr or cycle_max_lr
};

/// Those that the config names, for a group whose own rate is `lr`.
RateEnds ends_of(const SchedulerConfig& scheduler, double lr) noexcept;

/// A group's learning rate at the optimizer step that follows `steps_taken` updates that were not
/// skipped. Source: deepspeed/runtime/lr_schedules.py, 0.19.8.
double rate_between(const SchedulerConfig& scheduler, const RateEnds& ends,
                    std::uint64_t steps_taken) noexcept;

/// The same with the ends that the config names.
double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept;

/// Adam's constants while a schedule cycles momentum.
struct Betas {
  double beta1 = 0.0;
  double beta2 = 0.0;
};

/// OneCycle's betas at that optimizer step, between these two; nothing where no momentum is cycled.
/// A decay that grows keeps beta1 below 1.
std::optional<Betas> betas_between(const SchedulerConfig& scheduler, double low, double high,
                                   std::uint64_t steps_taken) noexcept;

}  // namespace artesian::zero3
