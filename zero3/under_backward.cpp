#include "zero3/under_backward.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/log.h"

namespace artesian::zero3 {

using tiering::Tier;

bool waits_for_norm(const Config& config) noexcept {
  return config.gradient_clipping != 0.0 || config.check_grad_overflow ||
         config.param_dtype == DType::Float16;
}

bool may_update_under_backward(const Config& config) noexcept {
  return config.artesian.speculative_update || !waits_for_norm(config);
}

std::vector<std::vector<std::uint32_t>> last_in_backward(const Layout& layout,
                                                         const std::vector<StageSpec>& stages) {
  std::vector<std::vector<std::uint32_t>> by_stage(stages.size());
  std::set<std::uint32_t> seen;
  for (const StageSpec& stage : stages) {
    if (stage.lookup.has_value()) seen.insert(layout.places[*stage.lookup].unit);
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const auto parameter : graph_parameters(stages[stage])) {
      const std::uint32_t unit = layout.places[parameter].unit;
      if (seen.insert(unit).second) by_stage[stage].push_back(unit);
    }
    std::sort(by_stage[stage].begin(), by_stage[stage].end());
  }
  return by_stage;
}

namespace {

/// Those of all stages in the order in which their gradients become final.
std::vector<std::uint32_t> in_order(const std::vector<std::vector<std::uint32_t>>& by_stage) {
  std::vector<std::uint32_t> units;
  for (auto stage = by_stage.rbegin(); stage != by_stage.rend(); ++stage) {
    units.insert(units.end(), stage->begin(), stage->end());
  }
  return units;
}

/// Whether an update of the unit may be taken back: Note [Speculation].
bool may_be_taken_back(const Placement& placement, std::uint32_t unit) {
  const bool room = dtype_size(placement.grad_dtype) >= dtype_size(placement.param_dtype);
  if (!room && placement.update_reads_param(unit)) return false;
  for (std::uint64_t index = 0; index < placement.sub_group_count(unit); ++index) {
    if (placement.optimizer_home(unit, index) != Tier::Nvme) return false;
  }
  return true;
}

}  // namespace

std::vector<bool> final_early(const Layout& layout, const std::vector<StageSpec>& stages) {
  std::vector<bool> early(layout.units.size(), false);
  for (const auto& units : last_in_backward(layout, stages)) {
    for (const std::uint32_t unit : units) early[unit] = true;
  }
  return early;
}

std::vector<std::vector<std::uint32_t>> final_after_stage(const Placement& placement,
                                                          const std::vector<StageSpec>& stages) {
  const auto in_host = [&](std::uint32_t unit) { return placement.units[unit].grad == Tier::Host; };
  const bool spills = placement.gradients_spill();
  auto by_stage = last_in_backward(placement.layout, stages);
  for (auto& units : by_stage) {
    std::erase_if(units, [&](std::uint32_t unit) { return spills || !in_host(unit); });
  }
  return by_stage;
}

double share_under_backward(const UpdateTimes& times) noexcept {
  // In forward (1 - x) * update_disk + forward_disk is to fit forward + (1 - x) * update, in
  // backward x * update_disk + backward_disk is to fit backward + x * update.
  const double uncovered = times.update_disk - times.update;
  const double computed = times.forward + times.backward;
  if (uncovered <= 0.0 || computed <= 0.0) return 0.0;
  const double of_backward = times.backward / computed;
  const double disk = times.forward_disk + times.backward_disk + uncovered;
  const double even = (disk * of_backward - times.backward_disk) / uncovered;
  const double possible = (times.backward - times.backward_disk) / uncovered;
  return std::clamp(std::min(even, possible), 0.0, 1.0);
}

std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share,
                                       bool speculative) {
  const auto units = static_cast<std::uint32_t>(placement.layout.units.size());
  std::vector<std::uint32_t> candidates = in_order(final_after_stage(placement, stages));
  std::erase_if(candidates, [&](std::uint32_t unit) {
    return speculative && !may_be_taken_back(placement, unit);
  });
  std::vector<double> bytes(units);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const Moved moved = update_moves(placement, unit, /*separate=*/false, /*live=*/true).total();
    bytes[unit] = static_cast<double>(moved.nvme_read + moved.nvme_write);
  }
  double possible = 0.0;
  for (const std::uint32_t unit : candidates) possible += bytes[unit];
  std::vector<bool> chosen(units, false);
  if (possible == 0.0) return chosen;
  const double wanted = share * std::accumulate(bytes.begin(), bytes.end(), 0.0);
  const double part = std::min(1.0, wanted / possible);
  double owed = 0.0;
  for (const std::uint32_t unit : candidates) {
    owed += part * bytes[unit];
    chosen[unit] = share > 0.0 && owed >= bytes[unit] / 2;
    if (chosen[unit]) owed -= bytes[unit];
  }
  return chosen;
}

bool may_update_under_backward(const Config& config, const Placement& placement,
                               const std::vector<StageSpec>& stages) {
  if (!may_update_under_backward(config)) return false;
  const std::vector<bool> most =
      units_under_backward(placement, stages, 1.0, waits_for_norm(config));
  return std::find(most.begin(), most.end(), true) != most.end();
}

Moved saved_moves(const Placement& placement, std::uint32_t unit) {
  if (!placement.update_reads_param(unit)) return {};
  return {.nvme_write = placement.optimizer_bytes(unit) / placement.state_size(unit) *
                        dtype_size(placement.param_dtype)};
}

std::uint64_t shadow_bytes(const Placement& placement, const std::vector<bool>& units) {
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit]) continue;
    bytes += placement.optimizer_bytes(unit) + saved_moves(placement, unit).nvme_write;
  }
  return bytes;
}

UnderBackward::UnderBackward(const Config& config, ModelState& state,
                             const std::vector<StageSpec>& stages, Gradients& gradients,
                             Optimizer& optimizer)
    : state_(state),
      stages_(stages),
      gradients_(gradients),
      optimizer_(optimizer),
      speculative_(waits_for_norm(config)),
      norm_max_(config.gradient_clipping > 0 ? config.gradient_clipping
                                             : std::numeric_limits<double>::infinity()),
      units_(state.layout().units.size(), false),
      by_stage_(stages.size()) {
  undecided_ = may_update_under_backward(config, state.placement(), stages);
}

Result<void> UnderBackward::decide(double share) noexcept {
  undecided_ = false;
  const std::vector<bool> chosen =
      units_under_backward(state_.placement(), stages_, share, speculative_);
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
  units_ = chosen;
  by_stage_ = final_after_stage(state_.placement(), stages_);
  for (auto& units : by_stage_) {
    std::erase_if(units, [this](std::uint32_t unit) { return !units_[unit]; });
  }
  log(LogLevel::Info, "update: " + std::to_string(count()) + " of " +
                          std::to_string(units_.size()) + " units under backward" +
                          (speculative_ ? ", taken back where the norm says so" : ""));
  return {};
}

Result<void> UnderBackward::begin(const kernels::AdamStep& constants, double loss_scale) noexcept {
  stopped_ = false;
  sum_squares_ = 0.0;
  sum_squares_max_ = norm_max_ * loss_scale * norm_max_ * loss_scale;
  const bool tries = expected_ || !speculative_;
  return optimizer_.begin_ahead(
      constants, tries ? in_order(by_stage_) : std::vector<std::uint32_t>(), speculative_);
}

Result<void> UnderBackward::accumulated(std::size_t stage) noexcept {
  if (!optimizer_.under_backward() || stopped_) return {};
  for (const std::uint32_t unit : by_stage_[stage]) {
    const auto sum_squares = gradients_.sum_final(unit);
    sum_squares_ += sum_squares.value_or(0.0);
    stopped_ = !sum_squares.has_value() || (speculative_ && sum_squares_ > sum_squares_max_);
    if (stopped_) return {};
    optimizer_.gradient_is_final(unit);
  }
  return optimizer_.update_ahead();
}

Result<void> UnderBackward::take_back() noexcept {
  return optimizer_.speculative() ? optimizer_.take_back() : Result<void>();
}

Result<void> UnderBackward::judged(bool as_begun, bool skipped) noexcept {
  expected_ = as_begun;
  if (!as_begun) ARTESIAN_TRY_VOID(take_back());
  return skipped ? optimizer_.skip() : Result<void>();
}

}  // namespace artesian::zero3
