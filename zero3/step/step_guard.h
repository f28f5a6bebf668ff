// StepGuard: decides what happens to a step whose loss or gradients are not finite. Such a step is
// never applied. It is skipped, with a log line that names the step and the first bad parameter, or
// it ends the run, with the weights from before it:
//   fp16           skipped, and the loss scale is lowered; at the minimum scale the run ends
//   bf16, fp32     skipped, with a warning: unscaled gradients should not overflow
//   bf16 with check_grad_overflow false: there is no skipping, so the run ends
// In all modes more than artesian.skipped_steps_max skipped steps in a row end the run, with
// advice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "zero3/config/config.h"
#include "zero3/step/loss_scaler.h"

namespace artesian::zero3 {

class StepGuard {
 public:
  /// The configuration must outlive it.
  explicit StepGuard(const Config& config) noexcept : config_(config) {}

  /// Records the loss of each micro-batch of the step, in order.
  void see_loss(double loss);
  /// True if any of these losses was not finite.
  bool loss_is_bad() const noexcept { return bad_micro_batch_ != 0; }

  /// Forgets them, as the step was abandoned.
  void forget_losses() noexcept { micro_batches_ = bad_micro_batch_ = 0; }

  struct Verdict {
    bool skip = false;         // do not change weights and moments
    std::optional<Error> end;  // if set, the run must end after this step; then `skip` is true
  };
  /// Returns the step's verdict, adjusts the loss scale and starts the next step. `bad_parameter`:
  /// the name of the first parameter whose gradient is not finite, or empty. `begun`: some weights
  /// already have the step's update.
  Verdict judge(std::uint64_t step, const std::string& bad_parameter, LossScaler& scaler,
                bool begun = false);

  /// Skipped steps since the last step that was not skipped; later verdicts depend on it.
  std::uint64_t skipped_in_a_row() const noexcept { return skipped_in_a_row_; }
  void restore_skipped_in_a_row(std::uint64_t count) noexcept { skipped_in_a_row_ = count; }

 private:
  std::string what_is_wrong(const std::string& bad_parameter) const;

  const Config& config_;
  std::uint64_t micro_batches_ = 0;
  std::uint64_t bad_micro_batch_ = 0;  // number of the first bad micro-batch, from 1; 0: none
  double bad_loss_ = 0.0;
  std::uint64_t skipped_in_a_row_ = 0;
};

}  // namespace artesian::zero3
