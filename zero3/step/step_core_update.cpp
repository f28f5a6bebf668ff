// The part of StepCore that makes updates: the previous step's pending update, under forward, and
// the part of a step's own update made under its last backward.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "zero3/step/step_core.h"

namespace artesian::zero3 {

/// Begins the update with a step's last backward, if that is allowed. The share of the update under
/// backward is decided once, from the first complete step.
Result<void> StepCore::begin_update_under_backward(const BackwardRequest& request) {
  under_backward_ns_ = 0;
  const std::uint64_t count = micro_batches_pending_;
  last_backward_ = request.last.value_or(micro_batches_ + count == config_.accumulation_steps);
  if (!last_backward_) return {};
  copy_ahead();
  if (guard_.loss_is_bad()) return {};
  const std::uint64_t begin = monotonic_ns();
  if (under_backward_->undecided() && measured_.step().has_value()) {
    const double part =
        static_cast<double>(count) / static_cast<double>(config_.accumulation_steps);
    const UpdateTimes times = update_times(figure_of(measured_), part, state_->separate_device());
    ARTESIAN_TRY_VOID(under_backward_->decide(share_under_backward(times)));
  }
  rate_begun_ = request.groups.empty() ? request.learning_rate.value_or(scheduled_rate())
                                       : request.groups.front().lr;
  groups_begun_ = request.groups;
  StepConstants constants = step_constants(*rate_begun_, 1.0 / scaler_.scale());
  if (!request.groups.empty()) constants.groups = request.groups;
  ARTESIAN_TRY_VOID(under_backward_->begin(std::move(constants), scaler_.scale()));
  under_backward_ns_ += monotonic_ns() - begin;
  return {};
}

Result<void> StepCore::update_final(std::size_t stage) {
  const std::uint64_t begin = monotonic_ns();
  ARTESIAN_TRY_VOID(under_backward_->accumulated(stage));
  const std::uint64_t end = monotonic_ns();
  under_backward_ns_ += end - begin;
  if (options_.timeline != nullptr) {
    options_.timeline->add(Lane::Optimizer, "update under backward", begin, end);
  }
  return {};
}

/// Figures of a step whose update was left entirely to the next forward. For a hooked model the
/// computing times are unknown, and with a separate device the calls only enqueue. Backward ends
/// when its last gradients have arrived, but this forward may have waited for the update; computing
/// takes a half or a third of backward's time.
StepFigure StepCore::figure_of(const MeasuredStep& measured) const {
  const StepResult& whole = *measured.step();
  const bool told = !state_->separate_device() && !options_.hooked;
  const double backward = told ? whole.backward_s : measured.backward_s();
  const double computed = backward / (config_.activation_checkpointing ? 3.0 : 2.0);
  return {.forward = told ? whole.forward_s : computed,
          .backward = backward,
          .disk = whole.disk_s,
          .update_disk = figures_->update_disk_s(),
          .update = whole.optimizer_s - whole.wait_optimizer_s,
          .gradients = whole.gradient_s};
}

/// Counts the work's bytes and time in the step whose update it is, instead of the open one.
template <typename Work>
Result<void> StepCore::go_on_updating(const Work& work) {
  ARTESIAN_CHECK(updating_.has_value());
  const StepFigures::Mark before = figures_->mark();
  ARTESIAN_TRY_VOID(work());
  const std::uint64_t copying_ns = checkpoints_->take_copy_ns();  // belongs to no step
  updating_->optimizer_s += figures_->hand_over(before, *updating_);
  updating_->optimizer_s -= static_cast<double>(copying_ns) * 1e-9;
  figures_->leave_out(copying_ns);
  return {};
}

Result<void> StepCore::update_before_use(std::uint32_t unit) {
  if (failed_ahead_.has_value()) return *failed_ahead_;
  if (!updating_.has_value()) return {};
  const std::uint64_t begin = monotonic_ns();
  ARTESIAN_TRY_VOID(go_on_updating([&] { return optimizer_->update_up_to(unit); }));
  if (options_.timeline == nullptr) return {};
  options_.timeline->add(Lane::Optimizer, layout().units[unit].name + " update", begin,
                         monotonic_ns());
  return {};
}

/// Updates only what needs no waiting, as the disk never waits for the model and the ring is short.
void StepCore::update_between_operators() noexcept {
  if (failed_ahead_.has_value() || !optimizer_->may_update_ahead()) return;
  const std::uint64_t begin = monotonic_ns();
  const auto work = [&] { return optimizer_->update_ahead(); };
  auto updated = updating_.has_value() ? go_on_updating(work) : work();
  if (!updated.has_value()) failed_ahead_ = std::move(updated).error();
  const std::uint64_t end = monotonic_ns();
  if (!updating_.has_value()) under_backward_ns_ += end - begin;
  if (options_.timeline == nullptr) return;
  options_.timeline->add(Lane::Optimizer, "update ahead", begin, end);
}

Result<void> StepCore::finish_pending() {
  if (!updating_.has_value()) return {};
  ARTESIAN_TRY_VOID(go_on_updating([&] { return optimizer_->finish_step(); }));
  completed_ = std::exchange(updating_, std::nullopt);
  measured_.complete(*completed_, /*alone=*/!checkpoints_->copying());
  figures_->end_update();
  return {};
}

Result<void> StepCore::complete_pending() {
  if (failed_ahead_.has_value()) return *failed_ahead_;
  ARTESIAN_TRY_VOID(settle_shares());
  ARTESIAN_TRY_VOID(complete_update());
  ARTESIAN_CHECK(!optimizer_->step_under_way());
  return checkpoints_->copying() ? copy_rest() : Result<void>();
}

Result<void> StepCore::take_update_back() {
  if (!in_last_backward()) return {};
  ARTESIAN_CHECK(options_.hooked);
  const auto take_back = [this]() -> Result<void> {
    if (failed_ahead_.has_value()) return *failed_ahead_;
    if (optimizer_->speculative()) ARTESIAN_TRY_VOID(prefetcher_->stop_fetching());
    ARTESIAN_TRY_VOID(under_backward_->give_up());
    gradients_->forget_sums();
    rate_begun_.reset();
    last_backward_ = false;
    const bool more = micro_batches_ < config_.accumulation_steps;
    if (step_state_ == StepState::Full && more) step_state_ = StepState::Accumulated;
    return {};
  };
  return remember(take_back());
}

/// Beside a caller's model: `uses` in the order of the first forward, behind the persistent units,
/// which step() updates.
void StepCore::set_update_order(const std::vector<std::uint32_t>& uses) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t unit = 0; options_.hooked && unit < layout().units.size(); ++unit) {
    if (layout().units[unit].persistent) order.push_back(unit);
  }
  order.insert(order.end(), uses.begin(), uses.end());
  optimizer_->set_order(order);
}

Result<void> StepCore::update_persistent() {
  ARTESIAN_TRY_VOID(check(StepCall::FinishUpdate, "update_persistent"));
  if (completes_update()) return finish_update();
  for (std::uint32_t unit = 0; unit < layout().units.size(); ++unit) {
    if (!layout().units[unit].persistent) continue;
    ARTESIAN_TRY_VOID(remember(update_before_use(unit)));
  }
  return {};
}

Result<void> StepCore::finish_update() {
  ARTESIAN_TRY_VOID(check(StepCall::FinishUpdate, "finish_update"));
  ARTESIAN_TRY_VOID(remember(complete_pending()));
  return remember(gather_persistent_shares());
}

}  // namespace artesian::zero3
