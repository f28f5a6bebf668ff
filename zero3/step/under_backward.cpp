#include "zero3/step/under_backward.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "zero3/step/clip.h"

namespace artesian::zero3 {

UnderBackward::UnderBackward(const Config& config, ModelState& state,
                             const std::vector<StageSpec>& stages, bool hooked,
                             Gradients& gradients, Optimizer& optimizer)
    : state_(state),
      stages_(stages),
      gradients_(gradients),
      optimizer_(optimizer),
      hooked_(hooked),
      speculative_(hooked || waits_for_norm(config)),
      clipping_(config.gradient_clipping),
      units_(state.layout().units.size(), false),
      by_stage_(stages.size()),
      gradient_order_(units_.size()) {
  const bool may_try = config.artesian.speculative_update || !speculative_;
  undecided_ = may_try && may_update_under_backward(config, state.placement(), stages);
}

Result<void> UnderBackward::decide(double share) noexcept {
  ARTESIAN_CHECK(undecided_);  // once
  undecided_ = false;
  std::vector<bool> chosen = units_under_backward(state_.placement(), stages_, share, speculative_);
  // A caller may read what stays gathered at any time before step().
  for (std::size_t unit = 0; hooked_ && unit < chosen.size(); ++unit) {
    if (state_.layout().units[unit].persistent) chosen[unit] = false;
  }
  if (speculative_) {
    auto reserved = state_.reserve_shadows(chosen);
    if (!reserved.has_value() && reserved.error().code == ErrorCode::NoSpace) {
      log(LogLevel::Info,
          "artesian.speculative_update: the update stays under forward, which is slower: " +
              reserved.error().to_string());
      return {};
    }
    ARTESIAN_TRY_VOID(std::move(reserved));
  }
  ARTESIAN_CHECK(chosen.size() == units_.size(), chosen.size(), units_.size());
  units_ = chosen;
  by_stage_ = final_after_stage(state_.placement(), stages_);
  for (auto& units : by_stage_) {
    std::erase_if(units, [this](std::uint32_t unit) { return !units_[unit]; });
  }
  log(LogLevel::Info, fmt::format("update: {} of {} units under backward{}", count(), units_.size(),
                                  speculative_ ? ", taken back where the norm says so" : ""));
  return {};
}

Result<void> UnderBackward::begin(StepConstants constants, double loss_scale) noexcept {
  stopped_ = given_up_ = false;
  sum_squares_ = 0.0;
  sum_squares_max_ = sum_squares_unclipped(clipping_, loss_scale);
  std::vector<std::uint32_t> expected =
      hooked_ ? gradient_order_.as_before(units_) : final_order(by_stage_);
  gradient_order_.begin(expected);
  return optimizer_.begin_ahead(std::move(constants), std::move(expected), speculative_);
}

Result<void> UnderBackward::accumulated(std::size_t stage) noexcept {
  ARTESIAN_CHECK(stage < by_stage_.size(), stage, by_stage_.size());
  if (!optimizer_.under_backward() || stopped_) return {};
  if (!hooked_) {
    for (const std::uint32_t unit : by_stage_[stage]) gradient_order_.complete(unit);
  }
  while (const auto unit = gradient_order_.next()) {
    const auto sum_squares = gradients_.sum_final(*unit);
    sum_squares_ += sum_squares.value_or(0.0);
    stopped_ = !sum_squares.has_value() || (speculative_ && sum_squares_ > sum_squares_max_);
    if (stopped_) return {};
    optimizer_.gradient_is_final(*unit);
  }
  return optimizer_.update_ahead();
}

Result<void> UnderBackward::take_back() noexcept {
  return optimizer_.speculative() ? optimizer_.take_back() : Result<void>();
}

Result<void> UnderBackward::abandon() noexcept {
  ARTESIAN_TRY_VOID(take_back());
  return optimizer_.skip();
}

Result<void> UnderBackward::give_up() noexcept {
  given_up_ = true;
  gradient_order_.give_up();
  return abandon();
}

Result<void> UnderBackward::judged(bool as_begun, bool skipped) noexcept {
  ARTESIAN_CHECK(!as_begun || !skipped);
  optimizer_.judged(as_begun && !given_up_);
  if (!as_begun) ARTESIAN_TRY_VOID(take_back());
  return skipped ? optimizer_.skip() : Result<void>();
}

}  // namespace artesian::zero3
