// UnitSlots: the units' slots in device memory as a prefetch policy (zero3/plan/prefetcher.h) sees
// them: their states and the transitions between them. Residency makes the transfers; DrySlots only
// counts them, so that a plan is made by the same decisions as a run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/priority.h"
#include "base/result.h"

namespace artesian::tiering {

enum class SlotState : std::uint8_t { Absent, Fetching, Live };

constexpr bool may_go(SlotState from, SlotState to) noexcept {
  switch (from) {
    case SlotState::Absent: return to == SlotState::Fetching;
    case SlotState::Fetching: return to == SlotState::Live || to == SlotState::Absent;
    case SlotState::Live: return to == SlotState::Absent;
  }
  return false;
}
static_assert(!may_go(SlotState::Absent, SlotState::Live));    // must pass through Fetching
static_assert(!may_go(SlotState::Live, SlotState::Fetching));  // fetched once, not again

class UnitSlots {
 public:
  virtual ~UnitSlots() = default;
  virtual SlotState state(std::uint32_t unit) const noexcept = 0;
  virtual bool pinned(std::uint32_t unit) const noexcept = 0;
  /// Takes a slot for an Absent unit and starts its transfers. Errors: Exhausted, with nothing
  /// changed, if no free run of device memory is long enough (evict and try again).
  virtual Result<void> start(std::uint32_t unit, aio::Priority priority) noexcept = 0;
  /// Waits for the transfers of a Fetching unit, verifies and expands it, and pins it. A Live unit
  /// is only pinned. Errors: Io, Corrupt, Timeout.
  virtual Result<void> acquire(std::uint32_t unit) noexcept = 0;
  /// Unpins a unit. Errors: Io (the device).
  virtual Result<void> unpin(std::uint32_t unit) noexcept = 0;
  /// Frees the slot of an unpinned unit, after waiting for its transfers in flight. Errors:
  /// Timeout.
  virtual Result<void> drop(std::uint32_t unit) noexcept = 0;
  /// Drops everything. Errors: Timeout; see Note [A disk that does not answer].
  virtual Result<void> clear() noexcept = 0;
  /// First byte of a Live unit's slot: [image] elements of the compute dtype.
  virtual std::byte* data(std::uint32_t unit) noexcept = 0;
};

}  // namespace artesian::tiering
