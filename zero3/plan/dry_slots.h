// DrySlots: slots that hold nothing. Offsets come from the pools' allocator, every transition is
// reported, and no bytes are accessed. A policy makes the same decisions over DrySlots as over a
// Residency with a pool of this size, but in microseconds and for models of any size.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pinned/free_list.h"
#include "tiering/unit_slots.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

struct DryUnit {
  std::uint64_t slot_bytes = 0;  // 0: aliased, so that nothing moves
  bool persistent = false;       // its slot lies at the far end of the pool
};

/// Returns the units of a placement.
std::vector<DryUnit> dry_units(const Placement& placement);

struct DryMove {
  tiering::SlotState to = tiering::SlotState::Absent;
  std::uint32_t unit = 0;
  aio::Priority priority = aio::Priority::Demand;  // priority of a fetch
};

class DrySlots final : public tiering::UnitSlots {
 public:
  /// `pool_bytes`: size of the device pool; `fixed_bytes`: the part with a fixed use for the whole
  /// run. `moved` is called with every change of a unit's state.
  DrySlots(std::vector<DryUnit> units, std::uint64_t pool_bytes, std::uint64_t fixed_bytes,
           std::function<void(const DryMove&)> moved);

  tiering::SlotState state(std::uint32_t unit) const noexcept override {
    return slots_[unit].state;
  }
  bool pinned(std::uint32_t unit) const noexcept override { return slots_[unit].pins != 0; }
  Result<void> start(std::uint32_t unit, aio::Priority priority) noexcept override;
  Result<void> acquire(std::uint32_t unit) noexcept override;
  Result<void> unpin(std::uint32_t unit) noexcept override;
  Result<void> drop(std::uint32_t unit) noexcept override;
  Result<void> clear() noexcept override;
  /// Null: there is no memory behind the slots.
  std::byte* data(std::uint32_t) noexcept override { return nullptr; }

 private:
  struct Slot {
    tiering::SlotState state = tiering::SlotState::Absent;
    std::uint32_t pins = 0;
    std::uint64_t offset = 0;
  };
  void go(std::uint32_t unit, tiering::SlotState to, aio::Priority priority) noexcept;

  const std::vector<DryUnit> units_;
  std::vector<Slot> slots_;
  pinned::FreeList free_;
  const std::function<void(const DryMove&)> moved_;
};

}  // namespace artesian::zero3
