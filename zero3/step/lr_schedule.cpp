#include "zero3/step/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace artesian::zero3 {
namespace {

/// The warm-up's share of the way up at index `index` < `steps`, in DeepSpeed's order of
/// operations.
double warmup_share(const SchedulerConfig& scheduler, double index, double steps) noexcept {
  if (scheduler.warmup_linear) return index / steps;
  return 1.0 / std::log(steps) * std::log(index + 1.0);
}

double warmup_lr(const SchedulerConfig& scheduler, const RateEnds& ends, double index,
                 double steps) noexcept {
  double share = 1.0;
  if (index < steps) {
    share = warmup_share(scheduler, index, steps);
  } else if (scheduler.type == SchedulerConfig::Type::WarmupDecayLR) {
    const auto total = static_cast<double>(scheduler.total_num_steps);
    share = std::max(0.0, (total - index) / std::max(1.0, total - steps));
  }
  return ends.warmup_min_lr + (ends.warmup_max_lr - ends.warmup_min_lr) * share;
}

double cosine_ratio(const SchedulerConfig& scheduler, double index, double steps) noexcept {
  if (index < steps) {
    return scheduler.warmup_min_ratio +
           (1.0 - scheduler.warmup_min_ratio) * warmup_share(scheduler, index, steps);
  }
  const double total = static_cast<double>(scheduler.total_num_steps) - steps;
  const double position = std::min(1.0, (index - steps + 1.0) / std::max(1.0, total));
  const double share = (1.0 + std::cos(M_PI * position)) / 2.0;
  return std::max(0.0, scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * share);
}

}  // namespace

double rate_between(const SchedulerConfig& scheduler, const RateEnds& ends,
                    std::uint64_t steps_taken) noexcept {
  using Type = SchedulerConfig::Type;
  if (scheduler.type == Type::Constant) return ends.lr;
  const bool cosine = scheduler.type == Type::WarmupCosineLR;
  // The first step runs with what DeepSpeed's constructor writes, before its counter has started.
  if (steps_taken == 0) return cosine ? 0.0 : ends.warmup_min_lr;
  const auto index = static_cast<double>(steps_taken - 1);
  const auto steps = static_cast<double>(std::max<std::uint64_t>(2, scheduler.warmup_num_steps));
  if (cosine) return ends.lr * cosine_ratio(scheduler, index, steps);
  return warmup_lr(scheduler, ends, index, steps);
}

double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept {
  const RateEnds ends{.lr = optimizer.lr,
                      .warmup_min_lr = scheduler.warmup_min_lr,
                      .warmup_max_lr = scheduler.warmup_max_lr};
  return rate_between(scheduler, ends, steps_taken);
}

}  // namespace artesian::zero3
