// UnitUses' functions for persistent units, whose parameters can be read between passes: some units
// at stage 3, all units below it.
#include <optional>
#include <span>
#include <vector>

#include "zero3/torch/storage_refusal.h"
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
  away_[unit] = false;
}

/// Persistent units wait for the step's update, so their old values must not be read.
void UnitUses::put_persistent_away() {
  for (std::uint32_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (!layout_.units[unit].persistent) continue;
    away_[unit] = released_tensors_throw();
    if (away_[unit]) tensors_.unbind(unit);
    watch_.remember(unit, /*readable=*/!away_[unit]);
  }
}

/// Binds the persistent units that no call of the pass has used.
Result<void> UnitUses::bring_persistent_back() {
  for (std::uint32_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (!away_[unit]) continue;
    const AccessOrder::Access alone = {unit};
    if (core_.state_of_step() == StepState::Forward) {  // otherwise the update is complete
      ARTESIAN_TRY_VOID(core_.enter(alone));
      ARTESIAN_TRY_VOID(core_.remember(core_.leave(alone)));
    }
    bind_for_long(unit);
  }
  return {};
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
