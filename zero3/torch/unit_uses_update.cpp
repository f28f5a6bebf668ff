// UnitUses' functions for the update under backward: which backward is assumed to be a step's last
// one, and what rolls the update back.
#include <algorithm>
#include <atomic>
#include <vector>

#include "zero3/torch/unit_use.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

/// Returns the constants that step() will get, if the current backward seems to be the step's last;
/// otherwise nothing.
std::vector<GroupStep> UnitUses::constants_if_last() const {
  if (core_.resident()) return {};  // the caller must not see changes before step()
  if (!constants_ || backwards_ + 1 != backwards_before_ || watch_.lends()) return {};
  return constants_();
}

std::vector<std::uint32_t> UnitUses::units_of(const std::vector<std::uint32_t>& stages) const {
  std::vector<std::uint32_t> units;
  for (const std::uint32_t stage : stages) {
    const AccessOrder::Access& own = layout_.stages[stage];
    units.insert(units.end(), own.begin(), own.end());
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

/// Marks units of a use as complete when backward is done with it and no other use has them.
void UnitUses::complete_units(const Use& use) {
  if (!core_.in_last_backward()) return;
  for (const std::uint32_t unit : use.units) {
    if (link_->awaited[unit].load(std::memory_order_relaxed) != 0 || holds_any_of(unit)) continue;
    if (layout_.units[unit].trainable && !core_.is_complete(unit)) core_.complete(unit);
  }
}

/// True if a gradient of the unit is held and will be added later.
bool UnitUses::holds_any_of(std::uint32_t unit) const {
  return std::any_of(held_.begin(), held_.end(),
                     [&](const auto& held) { return layout_.places[held.first].unit == unit; });
}

/// Called when a unit that seemed complete is used again or gets another gradient.
Result<void> UnitUses::reopen(std::uint32_t unit) {
  if (!core_.is_complete(unit)) return {};
  core_.reopen(unit);
  return core_.take_update_back();
}

}  // namespace artesian::zero3
