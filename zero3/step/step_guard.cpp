#include "zero3/step/step_guard.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdio>

#include "base/check.h"
#include "base/log.h"

namespace artesian::zero3 {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

void StepGuard::see_loss(double loss) {
  ++micro_batches_;
  if (std::isfinite(loss) || bad_micro_batch_ != 0) return;
  bad_micro_batch_ = micro_batches_;
  bad_loss_ = loss;
}

/// Formats "loss of micro-batch 2: got nan", "gradient of h.0.ln_1.weight: got a value that is not
/// finite". After a bad loss all gradients are bad, so naming a parameter would be misleading.
std::string StepGuard::what_is_wrong(const std::string& bad_parameter) const {
  ARTESIAN_CHECK(bad_micro_batch_ <= micro_batches_, bad_micro_batch_, micro_batches_);
  if (bad_micro_batch_ != 0) {
    return fmt::format("loss of micro-batch {}: got {}", bad_micro_batch_, number(bad_loss_));
  }
  if (bad_parameter.empty()) return "";
  return "gradient of " + bad_parameter + ": got a value that is not finite";
}

StepGuard::Verdict StepGuard::judge(std::uint64_t step, const std::string& bad_parameter,
                                    LossScaler& scaler, bool begun) {
  const std::string wrong = what_is_wrong(bad_parameter);
  const bool by_loss = loss_is_bad();
  micro_batches_ = bad_micro_batch_ = 0;
  const double scale = scaler.scale();
  const Result<void> scaled = scaler.update(!wrong.empty());
  if (wrong.empty()) {
    skipped_in_a_row_ = 0;
    return {};
  }
  ++skipped_in_a_row_;
  const std::string at = fmt::format("step {}: {}", step, wrong);
  const auto end = [](std::string message) {
    return Verdict{.skip = true, .end = make_error(ErrorCode::Invalid, std::move(message))};
  };
  const std::string look =
      "look at the step's data, the weights that it began with and the "
      "learning rate";
  if (!scaled.has_value()) {
    const std::string& scaler_says = scaled.error().message;
    return end(at + ", " + scaler_says + (by_loss ? "; the loss has no scale: " + look : ""));
  }
  if (!config_.check_grad_overflow) {
    const char* weights = begun ? "some weights may have this step's update already; "
                                : "the weights are as before this step; ";
    return end(at + ", allowed finite ones; " + weights + look +
               ", or set bf16.check_grad_overflow to true, which skips such steps");
  }
  const std::uint64_t limit = config_.artesian.skipped_steps_max;
  const std::string count = std::to_string(skipped_in_a_row_);
  if (limit != 0 && skipped_in_a_row_ >= limit) {
    return end(
        fmt::format("artesian.skipped_steps_max: step {}: got {} skipped steps in a row, allowed "
                    "fewer than {}; the last one: {}; {}, or raise the key (0: no limit)",
                    step, count, limit, wrong, look));
  }
  const bool expected = config_.param_dtype == DType::Float16 && !by_loss;
  log(expected ? LogLevel::Info : LogLevel::Warning,
      at + (expected ? " at loss scale " + number(scale) : ", allowed finite ones") +
          "; step skipped" + (skipped_in_a_row_ > 1 ? ", " + count + " in a row" : ""));
  return {.skip = true, .end = {}};
}

}  // namespace artesian::zero3
