// UnitUses' functions for persistent units, whose parameters can be read between passes: some units
// at stage 3, all units below it.
#include <optional>
#include <span>
#include <vector>

#include "zero3/torch/unit_use.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

/// Gives units that stay gathered their memory, if there is any, and records the present versions.
void UnitUses::bind_persistent() {
  for (std::uint32_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (!layout_.units[unit].persistent) continue;
    if (core_.state_of_step() == StepState::Unfilled) {
      tensors_.unbind(unit);
      watch_.remember(unit, /*readable=*/false);
    } else {
      bind_for_long(unit);
    }
  }
}

void UnitUses::bind_for_long(std::uint32_t unit) {
  tensors_.bind(unit, core_.data(unit));
  watch_.remember(unit, /*readable=*/true);
}

void UnitUses::weights_replaced(std::optional<std::uint32_t> unit) {
  const std::lock_guard held(link_->mutex);
  tensors_.bump_versions();
  watch_.versions_bumped();
  if (unit.has_value() && core_.resident()) {
    bind_for_long(*unit);
  } else {
    bind_persistent();
  }
}

std::vector<std::uint32_t> UnitUses::changed(LookFor look) const {
  const std::lock_guard held(link_->mutex);
  return watch_.changed(look);
}

void UnitUses::remember(std::span<const std::uint32_t> parameters) {
  const std::lock_guard held(link_->mutex);
  for (const std::uint32_t parameter : parameters) watch_.remember_one(parameter);
}

}  // namespace artesian::zero3
