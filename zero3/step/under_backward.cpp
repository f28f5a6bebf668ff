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
    : UnderBackwardFlow(state.layout().units.size(), hooked || waits_for_norm(config), hooked,
                        gradients, optimizer),
      state_(state),
      stages_(stages),
      optimizer_(optimizer),
      hooked_(hooked),
      speculative_(hooked || waits_for_norm(config)),
      clipping_(config.gradient_clipping) {
  const bool may_try = config.artesian.speculative_update || !speculative_;
  undecided_ = may_try && may_update_under_backward(config, state.placement(), stages);
}

Result<void> UnderBackward::decide(double share) noexcept {
  ARTESIAN_CHECK(undecided_);  // decided once
  undecided_ = false;
  std::vector<bool> chosen = units_under_backward(state_.placement(), stages_, share, speculative_);
  // A caller may read gathered parameters at any time before step().
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
  const auto count = std::count(chosen.begin(), chosen.end(), true);
  log(LogLevel::Info, fmt::format("update: {} of {} units under backward{}", count, chosen.size(),
                                  speculative_ ? ", taken back where the norm says so" : ""));
  choose(std::move(chosen), final_after_stage(state_.placement(), stages_));
  return {};
}

Result<void> UnderBackward::begin(StepConstants constants, double loss_scale) noexcept {
  auto expected = UnderBackwardFlow::begin(sum_squares_unclipped(clipping_, loss_scale));
  return optimizer_.begin_ahead(std::move(constants), std::move(expected), speculative_);
}

}  // namespace artesian::zero3
