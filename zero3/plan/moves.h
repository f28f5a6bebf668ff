// Moves: how many bytes a training step moves, by kind and direction, and how many a unit's update
// moves.
#pragma once

#include <cstdint>

#include "zero3/plan/placement.h"

namespace artesian::zero3 {

struct Moved {  // bytes
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_write = 0;
  std::uint64_t to_device = 0;  // host to device; on a CPU bytes cast or copied; 0 if aliased
  std::uint64_t to_host = 0;
  std::uint64_t bus = 0;  // bytes that one rank receives from the others

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
  /// Divides all byte counts by `parts`.
  MovedByKind& operator/=(std::uint64_t parts) noexcept;
  bool operator==(const MovedByKind&) const = default;
};

/// Bytes of the optimizer's passes over one unit: the measuring pass and the update. `live`: its
/// slot holds parameters, which the update refreshes.
MovedByKind update_moves(const Placement& plan, std::uint32_t unit, bool live);
/// Bytes of the pass that reads before the update (Placement::measures); else none.
MovedByKind measure_moves(const Placement& plan, std::uint32_t unit);
/// Bytes of a pass that rolls the update back: reads old parameters, or the state from which they
/// are derived, and writes parameters.
Moved restore_moves(const Placement& plan, std::uint32_t unit);

}  // namespace artesian::zero3
