// Moves: how many bytes of a training step go which way, and those that a unit's update moves.
#pragma once

#include <cstdint>

#include "zero3/plan/placement.h"

namespace artesian::zero3 {

struct Moved {  // bytes
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_write = 0;
  std::uint64_t to_device = 0;  // host to device; on a CPU casts and copies; 0 if aliased
  std::uint64_t to_host = 0;
  std::uint64_t bus = 0;  // what one rank receives from the others

  Moved& operator+=(const Moved& other) noexcept;
  Moved& operator/=(std::uint64_t parts) noexcept;
  bool operator==(const Moved&) const = default;
};

struct MovedByKind {
  Moved param;
  Moved grad;
  Moved optimizer;
  Moved input;  // stage inputs, kept for backward (kept_inputs.h)

  MovedByKind& operator+=(const MovedByKind& other) noexcept;
  Moved total() const noexcept;
  /// Divides all bytes into this many equal parts.
  MovedByKind& operator/=(std::uint64_t parts) noexcept;
  bool operator==(const MovedByKind&) const = default;
};

/// Moves of the optimizer's passes over one unit: those of measure_moves and of the update. `live`:
/// its slot holds parameters, which the update refreshes.
MovedByKind update_moves(const Placement& plan, std::uint32_t unit, bool live);
/// Moves of the pass that reads before the update does (Placement::measures); else none.
MovedByKind measure_moves(const Placement& plan, std::uint32_t unit);
/// Bytes of a pass that rolls the update back: old parameters, or the state they come from, are
/// read, and parameters written.
Moved restore_moves(const Placement& plan, std::uint32_t unit);

}  // namespace artesian::zero3
