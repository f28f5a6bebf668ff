// Proves the learning rates equal to DeepSpeed's, its counter included: values worked out by hand
// from the formulas, and long runs against an independent transcription that keeps DeepSpeed's own
// state (last_batch_iteration, stepped after every optimizer step).
#include "zero3/step/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace artesian::zero3 {
namespace {

using Type = SchedulerConfig::Type;

SchedulerConfig warmup(Type type, std::uint64_t steps, std::uint64_t total) {
  SchedulerConfig scheduler;
  scheduler.type = type;
  scheduler.warmup_min_lr = 0.0;
  scheduler.warmup_max_lr = 1e-3;
  scheduler.warmup_num_steps = steps;
  scheduler.total_num_steps = total;
  return scheduler;
}

TEST(LrSchedule, ConstantIsTheOptimizersRate) {
  OptimizerConfig optimizer;
  optimizer.lr = 3e-5;
  for (const std::uint64_t taken : {0u, 1u, 1000u}) {
    EXPECT_EQ(learning_rate(SchedulerConfig{}, optimizer, taken), 3e-5);
  }
}

TEST(LrSchedule, LogWarmupStartsWithTwoStepsAtTheMinimum) {
  const SchedulerConfig scheduler = warmup(Type::WarmupLR, 8, 0);
  const OptimizerConfig optimizer;
  EXPECT_EQ(learning_rate(scheduler, optimizer, 0), 0.0);  // i = -1: the constructor's value
  EXPECT_EQ(learning_rate(scheduler, optimizer, 1), 0.0);  // i = 0: ln 1
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 2), 1e-3 / 3, 1e-15);  // ln 2 / ln 8
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 4), 2e-3 / 3, 1e-15);  // ln 4 / ln 8
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 8), 1e-3, 1e-15);      // i = 7: ln 8 / ln 8
  EXPECT_DOUBLE_EQ(learning_rate(scheduler, optimizer, 9), 1e-3);        // past the warm-up
  EXPECT_DOUBLE_EQ(learning_rate(scheduler, optimizer, 1'000'000), 1e-3);
}

TEST(LrSchedule, LinearWarmupFromAMinimum) {
  SchedulerConfig scheduler = warmup(Type::WarmupLR, 4, 0);
  scheduler.warmup_linear = true;
  scheduler.warmup_min_lr = 2e-4;
  const double expected[] = {2e-4, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3};
  for (std::uint64_t taken = 0; taken < 7; ++taken) {
    EXPECT_NEAR(learning_rate(scheduler, {}, taken), expected[taken], 1e-18) << taken;
  }
}

TEST(LrSchedule, OneWarmupStepIsRaisedToTwo) {
  const SchedulerConfig scheduler = warmup(Type::WarmupLR, 1, 0);
  EXPECT_EQ(learning_rate(scheduler, {}, 1), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(scheduler, {}, 2), 1e-3);  // i = 1: ln 2 / ln 2
}

TEST(LrSchedule, DecayReachesZeroAtTheTotalAndStaysThere) {
  SchedulerConfig scheduler = warmup(Type::WarmupDecayLR, 2, 6);
  scheduler.warmup_linear = true;
  const double expected[] = {0, 0, 5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4, 0, 0};
  for (std::uint64_t taken = 0; taken < 9; ++taken) {
    EXPECT_NEAR(learning_rate(scheduler, {}, taken), expected[taken], 1e-18) << taken;
  }
}

TEST(LrSchedule, DecayWithATotalBelowTheWarmup) {
  const SchedulerConfig scheduler = warmup(Type::WarmupDecayLR, 10, 5);
  EXPECT_DOUBLE_EQ(learning_rate(scheduler, {}, 10), 1e-3);  // i = 9: still the warm-up
  EXPECT_EQ(learning_rate(scheduler, {}, 11), 0.0);          // i = 10: max(0, (5 - 10) / 1)
}

TEST(LrSchedule, CosineUsesTheOptimizersRateAndStartsAtZero) {
  SchedulerConfig scheduler = warmup(Type::WarmupCosineLR, 2, 6);
  scheduler.warmup_linear = true;
  scheduler.warmup_min_ratio = 0.1;
  scheduler.cos_min_ratio = 0.2;
  OptimizerConfig optimizer;
  optimizer.lr = 0.5;
  EXPECT_EQ(learning_rate(scheduler, optimizer, 0), 0.0);  // i = -1
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 1), 0.5 * 0.1, 1e-15);
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 2), 0.5 * 0.55, 1e-15);
  // i = 2: one quarter of the way: cos(pi/4)
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 3), 0.5 * (0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2),
              1e-15);
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 4), 0.5 * 0.6, 1e-15);   // half way: cos(pi/2)
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 6), 0.5 * 0.2, 1e-15);   // i = 5: the end
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 60), 0.5 * 0.2, 1e-15);  // constant from then on
}

TEST(LrSchedule, AGroupHasItsOwnEnds) {
  SchedulerConfig scheduler = warmup(Type::WarmupLR, 4, 0);
  scheduler.warmup_linear = true;
  const RateEnds ends{.lr = 1e-2, .low = 1e-3, .high = 5e-3};
  EXPECT_EQ(rate_between(scheduler, ends, 0), 1e-3);
  EXPECT_NEAR(rate_between(scheduler, ends, 3), 3e-3, 1e-18);
  EXPECT_EQ(rate_between(scheduler, ends, 9), 5e-3);
  scheduler = warmup(Type::WarmupCosineLR, 2, 6);
  scheduler.warmup_linear = true;
  EXPECT_EQ(rate_between(scheduler, ends, 0), 0.0);
  EXPECT_NEAR(rate_between(scheduler, ends, 2), 5e-3, 1e-18);  // half of its own rate
}

// deepspeed/runtime/lr_schedules.py as an object with its own counter.
struct Transcription {
  SchedulerConfig c;
  double optimizer_lr;
  long long i = -1;  // last_batch_iteration

  double get_lr() const {
    const long long N = c.warmup_num_steps < 2 ? 2 : static_cast<long long>(c.warmup_num_steps);
    const auto T = static_cast<long long>(c.total_num_steps);
    const double g = c.warmup_linear ? double(i) / double(N) : std::log(i + 1) / std::log(N);
    if (c.type == Type::WarmupCosineLR) {
      if (i < 0) return 0;
      if (i < N) return optimizer_lr * (c.warmup_min_ratio + (1 - c.warmup_min_ratio) * g);
      const double x = std::fmin(1, double(i - N + 1) / double(T - N > 1 ? T - N : 1));
      const double cosine = (1 + std::cos(3.14159265358979323846 * x)) / 2;
      return optimizer_lr * (c.cos_min_ratio + (1 - c.cos_min_ratio) * cosine);
    }
    if (i < 0) return c.warmup_min_lr;
    double gamma = 1;
    if (i < N) {
      gamma = g;
    } else if (c.type == Type::WarmupDecayLR) {
      gamma = T > i ? double(T - i) / double(T - N > 1 ? T - N : 1) : 0;
    }
    return c.warmup_min_lr + (c.warmup_max_lr - c.warmup_min_lr) * gamma;
  }
};

TEST(LrSchedule, EqualsTheTranscriptionOverWholeRuns) {
  OptimizerConfig optimizer;
  optimizer.lr = 3e-4;
  for (const Type type : {Type::WarmupLR, Type::WarmupDecayLR, Type::WarmupCosineLR}) {
    for (const bool linear : {false, true}) {
      for (const std::uint64_t steps : {1u, 2u, 7u, 100u, 1000u}) {
        for (const std::uint64_t total : {1u, 50u, 101u, 3000u}) {
          SchedulerConfig scheduler = warmup(type, steps, total);
          scheduler.warmup_linear = linear;
          scheduler.warmup_min_lr = 1e-6;
          scheduler.warmup_min_ratio = 0.01;
          Transcription expected{scheduler, optimizer.lr};
          for (std::uint64_t taken = 0; taken < 1200; ++taken) {
            const double want = expected.get_lr();
            ASSERT_NEAR(learning_rate(scheduler, optimizer, taken), want, 1e-15 + 1e-12 * want)
                << static_cast<int>(type) << " " << linear << " " << steps << " " << total << " "
                << taken;
            ++expected.i;  // the engine steps the schedule after each step that was not skipped
          }
        }
      }
    }
  }
}

TEST(LrSchedule, ARangeTestGrowsByItsFirstRate) {
  SchedulerConfig scheduler;
  scheduler.type = Type::LRRangeTest;
  scheduler.range_test = {.min_lr = 1e-3, .step_size = 4, .step_rate = 2.0, .staircase = false};
  const OptimizerConfig optimizer;
  EXPECT_EQ(learning_rate(scheduler, optimizer, 0), 1e-3);
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 2), 2e-3, 1e-18);
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 8), 5e-3, 1e-18);
  scheduler.range_test.staircase = true;
  EXPECT_EQ(learning_rate(scheduler, optimizer, 3), 1e-3);
  EXPECT_NEAR(learning_rate(scheduler, optimizer, 7), 3e-3, 1e-18);
}

TEST(LrSchedule, ACycleRisesFallsAndDecays) {
  SchedulerConfig scheduler;
  scheduler.type = Type::OneCycle;
  scheduler.cycle = {.min_lr = 1e-3,
                     .max_lr = 5e-3,
                     .decay_lr_rate = 1.0,
                     .first_steps = 4,
                     .second_steps = 2,
                     .decay_step_size = 2};
  const OptimizerConfig optimizer;
  const double rates[] = {1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 3e-3, 1e-3, 1e-3 / 1.5, 1e-3 / 2};
  const double beta1[] = {0.8, 0.875, 0.85, 0.825, 0.8, 0.85, 0.9, 0.9, 0.9};
  for (std::uint64_t taken = 0; taken < std::size(rates); ++taken) {
    EXPECT_NEAR(learning_rate(scheduler, optimizer, taken), rates[taken], 1e-17) << taken;
    const auto betas = betas_between(scheduler, 0.8, 0.9, taken);
    ASSERT_TRUE(betas.has_value());
    EXPECT_NEAR(betas->beta1, beta1[taken], 1e-15) << taken;
    EXPECT_EQ(betas->beta2, 0.99);
  }
  scheduler.cycle.first_stairs = 2;
  EXPECT_EQ(learning_rate(scheduler, optimizer, 1), 1e-3);
  EXPECT_EQ(learning_rate(scheduler, optimizer, 3), 3e-3);
  EXPECT_EQ(learning_rate(scheduler, optimizer, 4), 5e-3);
  scheduler.cycle.decay_momentum_rate = 100.0;
  EXPECT_LT(betas_between(scheduler, 0.8, 0.9, 1000)->beta1, 1.0);
  scheduler.cycle.momentum = false;
  EXPECT_FALSE(betas_between(scheduler, 0.8, 0.9, 1).has_value());
}

}  // namespace
}  // namespace artesian::zero3
