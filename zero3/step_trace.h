// The order in which a training step touches its units: that of UnitGraphs, for those who have no
// tensors. One rule for both.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/layout.h"
#include "zero3/trace.h"

namespace artesian::zero3 {

/// The units that a stage's backward needs: no values of the looked-up parameter, whose rows'
/// gradients are all there is.
Trace::Access backward_units(const Layout& layout, const std::vector<StageSpec>& stages,
                             std::size_t stage);

enum class Direction : std::uint8_t { Forward, Backward };

struct StageAccess {
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  std::uint64_t micro_batches = 1;  // that the stage computes on meanwhile
  Trace::Access units;
};

/// The accesses of one step: for each group of `at_once` micro-batches, of which the last may be
/// smaller, forward over all stages and backward in reverse.
std::vector<StageAccess> step_trace(const Layout& layout, const std::vector<StageSpec>& stages,
                                    std::uint64_t micro_batches, std::uint64_t at_once);

}  // namespace artesian::zero3
