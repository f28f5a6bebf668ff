#include "zero3/plan/units_under_backward.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

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
  ARTESIAN_CHECK(layout.stages.size() == stages.size(), layout.stages.size(), stages.size());
  std::vector<std::vector<std::uint32_t>> by_stage(stages.size());
  std::set<std::uint32_t> seen;
  for (const StageSpec& stage : stages) {
    if (stage.lookup.has_value()) seen.insert(layout.places[*stage.lookup].unit);
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const auto parameter : graph_parameters(stages[stage])) {
      const std::uint32_t unit = layout.places[parameter].unit;
      if (!layout.units[unit].trainable) continue;
      if (seen.insert(unit).second) by_stage[stage].push_back(unit);
    }
    std::sort(by_stage[stage].begin(), by_stage[stage].end());
  }
  return by_stage;
}

std::vector<std::uint32_t> final_order(const std::vector<std::vector<std::uint32_t>>& by_stage) {
  std::vector<std::uint32_t> units;
  for (auto stage = by_stage.rbegin(); stage != by_stage.rend(); ++stage) {
    units.insert(units.end(), stage->begin(), stage->end());
  }
  return units;
}

namespace {

/// True if an update of the unit can be rolled back by shadows: Note [Speculation].
bool has_shadows(const Placement& placement, std::uint32_t unit) {
  const bool room = dtype_size(placement.grad_dtype) >= dtype_size(placement.param_dtype);
  if (!room && placement.update_reads_param(unit)) return false;
  for (std::uint64_t index = 0; index < placement.sub_group_count(unit); ++index) {
    if (placement.optimizer_home(unit, index) != Tier::Nvme) return false;
  }
  return true;
}

}  // namespace

std::uint64_t old_state_bytes(const Placement& placement, std::uint32_t unit) {
  if (!placement.separate_device || !placement.layout.units[unit].trainable) return 0;
  const bool reads_param = placement.update_reads_param(unit);
  if (reads_param && placement.units[unit].param != Tier::Host) return 0;
  const std::uint64_t bytes = placement.optimizer_bytes(unit);
  if (placement.optimizer_bytes_in(Tier::Host, unit) != bytes) return 0;
  return bytes +
         (reads_param ? bytes / placement.state_size(unit) * dtype_size(placement.param_dtype) : 0);
}

namespace {

/// The units that fit into `room`, in the order in which their gradients become final.
std::vector<std::uint32_t> kept_within(const Placement& placement,
                                       const std::vector<StageSpec>& stages, std::uint64_t room) {
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t unit : final_order(final_after_stage(placement, stages))) {
    const std::uint64_t bytes = old_state_bytes(placement, unit);
    if (bytes == 0 || bytes > room) continue;
    room -= bytes;
    kept.push_back(unit);
  }
  return kept;
}

}  // namespace

std::uint64_t old_state_within(const Placement& placement, const std::vector<StageSpec>& stages,
                               std::uint64_t room) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t unit : kept_within(placement, stages, room)) {
    bytes += old_state_bytes(placement, unit);
  }
  return bytes;
}

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

UpdateTimes update_times(const StepFigure& step, double part, bool separate) noexcept {
  const double others = part * std::max(0.0, step.disk - step.update_disk);
  return {.forward = part * step.forward,
          .backward = part * step.backward,
          .forward_disk = others / 2,
          .backward_disk = others / 2,
          .update = separate ? 0.0 : step.update,
          .update_disk = step.update_disk,
          .update_host = separate ? step.update : 0.0,
          .backward_host = separate ? part * step.gradients : 0.0};
}

double share_under_backward(const UpdateTimes& times) noexcept {
  // For a share x, forward should satisfy (1 - x) * update_disk + forward_disk = forward + (1 - x)
  // * update, and backward x * update_disk + backward_disk = backward + x * update. The same for
  // the host's cores if a separate device computes.
  const double disk = times.forward_disk + times.backward_disk + times.update_disk;
  const bool host = times.update_host + times.backward_host > disk;
  const double uncovered = host ? times.update_host : times.update_disk - times.update;
  const double in_forward = host ? 0.0 : times.forward_disk;
  const double in_backward = host ? times.backward_host : times.backward_disk;
  const double computed = times.forward + times.backward;
  if (uncovered <= 0.0 || computed <= 0.0) return 0.0;
  const double of_backward = times.backward / computed;
  const double even =
      ((in_forward + in_backward + uncovered) * of_backward - in_backward) / uncovered;
  const double possible = (times.backward - in_backward) / uncovered;
  return std::clamp(std::min(even, possible), 0.0, 1.0);
}

std::vector<bool> units_under_backward(const Placement& placement,
                                       const std::vector<StageSpec>& stages, double share,
                                       bool speculative) {
  const auto units = static_cast<std::uint32_t>(placement.layout.units.size());
  std::vector<std::uint32_t> candidates = final_order(final_after_stage(placement, stages));
  const auto kept = kept_within(placement, stages, placement.old_state_bytes);
  std::erase_if(candidates, [&](std::uint32_t unit) {
    const bool is_kept = std::find(kept.begin(), kept.end(), unit) != kept.end();
    return speculative && !is_kept && !has_shadows(placement, unit);
  });
  std::vector<double> bytes(units);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const Moved moved = update_moves(placement, unit, /*live=*/true).total();
    bytes[unit] = static_cast<double>(moved.nvme_read + moved.nvme_write);
    const bool by_host = !placement.units[unit].updated_on_device();
    if (placement.separate_device && placement.layout.units[unit].trainable && by_host) {
      bytes[unit] = static_cast<double>(placement.optimizer_bytes(unit));
    }
  }
  double possible = 0.0;
  for (const std::uint32_t unit : candidates) possible += bytes[unit];
  std::vector<bool> chosen(units, false);
  if (possible == 0.0 || placement.measures) return chosen;  // the update needs all gradients
  const double wanted = share * std::accumulate(bytes.begin(), bytes.end(), 0.0);
  const double part = std::min(1.0, wanted / possible);
  double owed = 0.0;
  for (const std::uint32_t unit : candidates) {
    owed += part * bytes[unit];
    ARTESIAN_CHECK(!chosen[unit] && placement.layout.units[unit].trainable, unit);
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
  const bool in_memory = old_state_bytes(placement, unit) != 0;
  if (!placement.update_reads_param(unit) || in_memory) return {};
  return {.nvme_write = placement.optimizer_bytes(unit) / placement.state_size(unit) *
                        dtype_size(placement.param_dtype)};
}

std::uint64_t shadow_bytes(const Placement& placement, const std::vector<bool>& units) {
  ARTESIAN_CHECK(units.size() <= placement.units.size(), units.size(), placement.units.size());
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit] || old_state_bytes(placement, unit) != 0) continue;
    bytes += placement.optimizer_bytes(unit) + saved_moves(placement, unit).nvme_write;
  }
  return bytes;
}

}  // namespace artesian::zero3
