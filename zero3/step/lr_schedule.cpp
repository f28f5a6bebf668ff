#include "zero3/step/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace artesian::zero3 {
namespace {

/// The progress of the warm-up, from 0 to 1, at `index` < `steps`, with DeepSpeed's order of
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
  return ends.low + (ends.high - ends.low) * share;
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

double range_test_lr(const SchedulerConfig::RangeTest& test, double low, double taken) noexcept {
  double intervals = taken / static_cast<double>(test.step_size);
  if (test.staircase) intervals = std::floor(intervals);
  return low * (1.0 + test.step_rate * intervals);
}

double total_steps(const SchedulerConfig::Cycle& cycle) noexcept {
  return static_cast<double>(cycle.first_steps) + static_cast<double>(cycle.second_steps);
}

/// The position in the cycle, from 0 to 1, as in DeepSpeed's _get_scale_factor.
double cycle_share(const SchedulerConfig::Cycle& cycle, double taken) noexcept {
  const auto first = static_cast<double>(cycle.first_steps);
  const double total = total_steps(cycle);
  const double ratio = first / total;
  const double x = 1.0 + taken / total - std::floor(1.0 + taken / total);
  const bool rises = x <= ratio;
  const std::uint64_t stairs = rises ? cycle.first_stairs : cycle.second_stairs;
  if (stairs == 0) return rises ? x / ratio : (x - 1.0) / (ratio - 1.0);
  const auto count = static_cast<double>(stairs);
  const double within = std::fmod(taken, total);
  const double position = within <= first
                              ? within * count / first
                              : (total - within) * count / static_cast<double>(cycle.second_steps);
  return std::floor(position) / count;
}

/// True in the cycle itself; false in the decay after it.
bool in_cycle(const SchedulerConfig::Cycle& cycle, double taken) noexcept {
  return taken - 1.0 < total_steps(cycle);
}

double one_cycle_lr(const SchedulerConfig::Cycle& cycle, const RateEnds& ends,
                    double taken) noexcept {
  if (in_cycle(cycle, taken)) return ends.low + (ends.high - ends.low) * cycle_share(cycle, taken);
  if (cycle.decay_step_size == 0) return ends.low;
  const double intervals =
      (taken - total_steps(cycle)) / static_cast<double>(cycle.decay_step_size);
  return ends.low / (1.0 + cycle.decay_lr_rate * intervals);
}

}  // namespace

RateEnds ends_of(const SchedulerConfig& scheduler, double lr) noexcept {
  using Type = SchedulerConfig::Type;
  switch (scheduler.type) {
    case Type::LRRangeTest: return {.lr = lr, .low = scheduler.range_test.min_lr, .high = 0.0};
    case Type::OneCycle:
      return {.lr = lr, .low = scheduler.cycle.min_lr, .high = scheduler.cycle.max_lr};
    default: return {.lr = lr, .low = scheduler.warmup_min_lr, .high = scheduler.warmup_max_lr};
  }
}

double rate_between(const SchedulerConfig& scheduler, const RateEnds& ends,
                    std::uint64_t steps_taken) noexcept {
  using Type = SchedulerConfig::Type;
  if (scheduler.type == Type::Constant) return ends.lr;
  const auto taken = static_cast<double>(steps_taken);
  if (scheduler.type == Type::LRRangeTest) {
    return range_test_lr(scheduler.range_test, ends.low, taken);
  }
  const bool cosine = scheduler.type == Type::WarmupCosineLR;
  // The first step uses the values set by DeepSpeed's constructor, before its counter starts.
  if (steps_taken == 0) return cosine ? 0.0 : ends.low;
  if (scheduler.type == Type::OneCycle) return one_cycle_lr(scheduler.cycle, ends, taken);
  const double index = taken - 1.0;
  const auto steps = static_cast<double>(std::max<std::uint64_t>(2, scheduler.warmup_num_steps));
  if (cosine) return ends.lr * cosine_ratio(scheduler, index, steps);
  return warmup_lr(scheduler, ends, index, steps);
}

double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                     std::uint64_t steps_taken) noexcept {
  return rate_between(scheduler, ends_of(scheduler, optimizer.lr), steps_taken);
}

std::optional<Betas> betas_between(const SchedulerConfig& scheduler, double low, double high,
                                   std::uint64_t steps_taken) noexcept {
  const SchedulerConfig::Cycle& cycle = scheduler.cycle;
  if (scheduler.type != SchedulerConfig::Type::OneCycle || !cycle.momentum) return std::nullopt;
  constexpr double beta2 = 0.99;
  if (steps_taken == 0) return Betas{low, beta2};
  const auto taken = static_cast<double>(steps_taken);
  if (in_cycle(cycle, taken)) {
    return Betas{high - (high - low) * cycle_share(cycle, taken), beta2};
  }
  if (cycle.decay_step_size == 0) return Betas{high, beta2};
  const double intervals =
      (taken - total_steps(cycle)) / static_cast<double>(cycle.decay_step_size);
  constexpr double below_one = 0.999999;
  return Betas{std::min(below_one, high * (1.0 + cycle.decay_momentum_rate * intervals)), beta2};
}

}  // namespace artesian::zero3
