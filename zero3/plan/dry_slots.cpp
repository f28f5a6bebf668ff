#include "zero3/plan/dry_slots.h"

#include <algorithm>
#include <utility>

#include "base/huge_page.h"
#include "base/units.h"

namespace artesian::zero3 {

using tiering::SlotState;

std::vector<DryUnit> dry_units(const Placement& placement) {
  std::vector<DryUnit> units;
  for (std::size_t unit = 0; unit < placement.units.size(); ++unit) {
    const UnitPlacement& place = placement.units[unit];
    const std::uint64_t bytes = placement.layout.units[unit].image * dtype_size(place.computed);
    units.push_back({.slot_bytes = place.aliased() ? 0 : bytes,
                     .persistent = placement.layout.units[unit].persistent});
  }
  return units;
}

DrySlots::DrySlots(std::vector<DryUnit> units, std::uint64_t pool_bytes, std::uint64_t fixed_bytes,
                   std::function<void(const DryMove&)> moved)
    : units_(std::move(units)),
      slots_(units_.size()),
      free_(std::max(round_up(pool_bytes, page_size), page_size), page_size),
      moved_(std::move(moved)) {
  if (fixed_bytes == 0) return;
  const auto taken = free_.take_high(round_up(fixed_bytes, page_size));
  ARTESIAN_CHECK(taken.has_value(), fixed_bytes, pool_bytes);
}

void DrySlots::go(std::uint32_t unit, SlotState to, aio::Priority priority) noexcept {
  Slot& slot = slots_[unit];
  ARTESIAN_CHECK(may_go(slot.state, to), static_cast<int>(slot.state), static_cast<int>(to));
  slot.state = to;
  moved_({.to = to, .unit = unit, .priority = priority});
}

Result<void> DrySlots::start(std::uint32_t unit, aio::Priority priority) noexcept {
  ARTESIAN_CHECK(unit < slots_.size() && slots_[unit].pins == 0, unit, slots_.size());
  if (units_[unit].slot_bytes != 0) {
    const std::uint64_t size = round_up(units_[unit].slot_bytes, page_size);
    const auto offset = units_[unit].persistent ? free_.take_high(size) : free_.take_low(size);
    if (!offset.has_value()) return make_error(ErrorCode::Exhausted, "no free run is long enough");
    slots_[unit].offset = *offset;
  }
  go(unit, SlotState::Fetching, priority);
  return {};
}

Result<void> DrySlots::acquire(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(slots_[unit].state != SlotState::Absent);
  if (slots_[unit].state == SlotState::Fetching) go(unit, SlotState::Live, {});
  ++slots_[unit].pins;
  return {};
}

Result<void> DrySlots::unpin(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(slots_[unit].pins > 0);
  ARTESIAN_CHECK(slots_[unit].state == SlotState::Live, static_cast<int>(slots_[unit].state));
  --slots_[unit].pins;
  return {};
}

Result<void> DrySlots::drop(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(slots_[unit].pins == 0, slots_[unit].pins);
  if (slots_[unit].state == SlotState::Absent) return {};
  if (units_[unit].slot_bytes != 0) {
    free_.give(slots_[unit].offset, round_up(units_[unit].slot_bytes, page_size));
  }
  go(unit, SlotState::Absent, {});
  return {};
}

Result<void> DrySlots::clear() noexcept {
  for (std::uint32_t unit = 0; unit < slots_.size(); ++unit) {
    slots_[unit].pins = 0;
    ARTESIAN_TRY_VOID(drop(unit));
  }
  return {};
}

}  // namespace artesian::zero3
