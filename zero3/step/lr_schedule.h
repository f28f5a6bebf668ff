// Learning-rate schedules with DeepSpeed's counter: optimizer step k (from 1) uses index k - 2, and
// a skipped step does not advance.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// The rates between which a schedule moves a parameter group's learning rate.
struct RateEnds {
  double lr = 0.0;    // the group's own rate, without a schedule; WarmupCosineLR multiplies it
  double low = 0.0;   // warmup_min_lr, lr_range_test_min_lr or cycle_min_lr
  double high = 0.0;  // warmup_max_lr or cycle_max_lr
};

/// The rates in the config's schedule, for a group whose own rate is `lr`.
RateEnds ends_of(const SchedulerConfig& scheduler, double lr) noexcept;

/// A group's learning rate at the optimizer step after `steps_taken` updates (skipped steps do not
/// count). Source: deepspeed/runtime/lr_schedules.py, 0.19.8.
double rate_between(const SchedulerConfig& scheduler, const RateEnds& ends,
                    std::uint64_t steps_taken) noexcept;

/// As rate_between, with the rates in the config.
double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept;

/// Adam's constants while a schedule cycles momentum.
struct Betas {
  double beta1 = 0.0;
  double beta2 = 0.0;
};

/// OneCycle's betas at that optimizer step, between these two; empty if momentum is not cycled.
/// beta1 stays below 1 even if the decay grows.
std::optional<Betas> betas_between(const SchedulerConfig& scheduler, double low, double high,
                                   std::uint64_t steps_taken) noexcept;

}  // namespace artesian::zero3
