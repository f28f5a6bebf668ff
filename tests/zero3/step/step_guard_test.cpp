// Proves how a step that is not finite is handled in every mode: it is skipped with a line that
// names step and parameter, or the run ends with fitting advice.
#include "zero3/step/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/log.h"

namespace artesian::zero3 {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

class StepGuardTest : public testing::Test {
 protected:
  StepGuardTest() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      level_ = level;
      lines_.emplace_back(line);
    });
  }
  ~StepGuardTest() override { set_log_sink({}); }

  static Config config(DType dtype) {
    Config made;
    made.param_dtype = dtype;
    made.loss_scale = {.initial_scale_power = 4, .hysteresis = 1};
    return made;
  }

  LogLevel level_ = LogLevel::Error;
  std::vector<std::string> lines_;
};

TEST_F(StepGuardTest, AFiniteStepIsAppliedInSilence) {
  const Config fp16 = config(DType::Float16);
  StepGuard guard(fp16);
  LossScaler scaler(fp16.param_dtype, fp16.loss_scale);
  guard.see_loss(-1e300);
  const auto verdict = guard.judge(1, "", scaler);
  EXPECT_FALSE(verdict.skip);
  EXPECT_FALSE(verdict.end.has_value());
  EXPECT_EQ(scaler.scale(), 16.0);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(StepGuardTest, AnOverflowOfFp16IsSkippedWithANoteAndHalvesTheScale) {
  const Config fp16 = config(DType::Float16);
  StepGuard guard(fp16);
  LossScaler scaler(fp16.param_dtype, fp16.loss_scale);
  guard.see_loss(2.5);
  const auto verdict = guard.judge(7, "h.1.mlp.c_fc.weight", scaler);
  EXPECT_TRUE(verdict.skip);
  EXPECT_FALSE(verdict.end.has_value());
  EXPECT_EQ(scaler.scale(), 8.0);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(level_, LogLevel::Info);
  EXPECT_EQ(lines_[0],
            "step 7: gradient of h.1.mlp.c_fc.weight: got a value that is not finite at loss "
            "scale 16; step skipped");
}

TEST_F(StepGuardTest, TheMinimumScaleEndsTheRunAndNamesTheParameter) {
  const Config fp16 = config(DType::Float16);
  StepGuard guard(fp16);
  LossScaler scaler(fp16.param_dtype, fp16.loss_scale);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    EXPECT_FALSE(guard.judge(step, "wpe.weight", scaler).end.has_value());
  }
  const auto verdict = guard.judge(5, "wpe.weight", scaler);
  EXPECT_TRUE(verdict.skip);
  ASSERT_TRUE(verdict.end.has_value());
  EXPECT_EQ(verdict.end->message,
            "step 5: gradient of wpe.weight: got a value that is not finite, at the minimum loss "
            "scale 1; lower fp16.min_loss_scale or the learning rate, or use bf16");
}

TEST_F(StepGuardTest, UnscaledGradientsAreSkippedWithAWarning) {
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    const Config given = config(dtype);
    StepGuard guard(given);
    LossScaler scaler(dtype, given.loss_scale);
    lines_.clear();
    EXPECT_TRUE(guard.judge(3, "ln_f.bias", scaler).skip);
    EXPECT_TRUE(guard.judge(4, "ln_f.bias", scaler).skip);
    ASSERT_EQ(lines_.size(), 2u);
    EXPECT_EQ(level_, LogLevel::Warning);
    EXPECT_EQ(lines_[1],
              "step 4: gradient of ln_f.bias: got a value that is not finite, allowed finite ones; "
              "step skipped, 2 in a row");
  }
}

TEST_F(StepGuardTest, WithoutTheCheckTheRunEndsInsteadOfPoisoningTheWeights) {
  Config bf16 = config(DType::BFloat16);
  bf16.check_grad_overflow = false;
  StepGuard guard(bf16);
  LossScaler scaler(bf16.param_dtype, bf16.loss_scale);
  const auto verdict = guard.judge(2, "ln_f.bias", scaler);
  EXPECT_TRUE(verdict.skip);
  ASSERT_TRUE(verdict.end.has_value());
  EXPECT_TRUE(verdict.end->message.starts_with(
      "step 2: gradient of ln_f.bias: got a value that is not finite, allowed finite ones; "))
      << verdict.end->message;
  EXPECT_NE(verdict.end->message.find("bf16.check_grad_overflow"), std::string::npos);
}

TEST_F(StepGuardTest, ALossThatIsNotFiniteIsNamedWithItsMicroBatch) {
  for (const double loss : {infinite, -infinite, std::nan("")}) {
    const Config fp32 = config(DType::Float32);
    StepGuard guard(fp32);
    LossScaler scaler(fp32.param_dtype, fp32.loss_scale);
    lines_.clear();
    for (const double each : {1.0, loss, infinite}) guard.see_loss(each);  // the first one counts
    EXPECT_TRUE(guard.judge(9, "", scaler).skip);
    ASSERT_EQ(lines_.size(), 1u);
    EXPECT_EQ(level_, LogLevel::Warning);
    const std::string value = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
    EXPECT_EQ(lines_[0], "step 9: loss of micro-batch 2: got " + value +
                             ", allowed finite ones; step skipped");
    guard.see_loss(1.0);
    EXPECT_FALSE(guard.judge(10, "", scaler).skip);  // forgotten with its step
  }
}

TEST_F(StepGuardTest, SkippedStepsInARowEndTheRun) {
  for (const std::uint64_t limit : {1u, 3u}) {
    Config fp32 = config(DType::Float32);
    fp32.artesian.skipped_steps_max = limit;
    StepGuard guard(fp32);
    LossScaler scaler(fp32.param_dtype, fp32.loss_scale);
    std::uint64_t step = 0;
    for (int round = 0; round < 2; ++round) {  // a good step restarts the count
      for (std::uint64_t bad = 1; bad < limit; ++bad) {
        EXPECT_FALSE(guard.judge(++step, "wte.weight", scaler).end.has_value());
      }
      EXPECT_FALSE(guard.judge(++step, "", scaler).skip);
    }
    for (std::uint64_t bad = 1; bad < limit; ++bad) guard.judge(++step, "wte.weight", scaler);
    guard.see_loss(infinite);
    const auto verdict = guard.judge(++step, "wte.weight", scaler);
    ASSERT_TRUE(verdict.end.has_value());
    EXPECT_TRUE(verdict.end->message.starts_with(
        "artesian.skipped_steps_max: step " + std::to_string(step) + ": got " +
        std::to_string(limit) + " skipped steps in a row, allowed fewer than " +
        std::to_string(limit) + "; the last one: loss of micro-batch 1: got inf; look at "))
        << verdict.end->message;
  }
}

TEST_F(StepGuardTest, WithoutALimitAllAreSkipped) {
  Config fp32 = config(DType::Float32);
  fp32.artesian.skipped_steps_max = 0;
  StepGuard guard(fp32);
  LossScaler scaler(fp32.param_dtype, fp32.loss_scale);
  for (std::uint64_t step = 1; step <= 500; ++step) {
    EXPECT_FALSE(guard.judge(step, "wte.weight", scaler).end.has_value());
  }
}

TEST_F(StepGuardTest, SkippedStepsBeforeARestartCount) {
  Config bf16 = config(DType::BFloat16);
  bf16.artesian.skipped_steps_max = 3;
  LossScaler scaler(bf16.param_dtype, bf16.loss_scale);
  StepGuard before(bf16);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    EXPECT_FALSE(before.judge(step, "w", scaler).end.has_value());
  }
  EXPECT_EQ(before.skipped_in_a_row(), 2u);
  StepGuard after(bf16);
  after.restore_skipped_in_a_row(before.skipped_in_a_row());
  EXPECT_TRUE(after.judge(3, "w", scaler).end.has_value());
}

}  // namespace
}  // namespace artesian::zero3
