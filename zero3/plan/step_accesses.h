// The order in which a training step touches its units: that of UnitGraphs, for those who have no
// tensors. One rule for both.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/access_order.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

/// The units that a stage's backward needs: no values of the looked-up parameter, whose rows'
/// gradients are all there is.
AccessOrder::Access backward_units(const Layout& layout, const std::vector<StageSpec>& stages,
                                   std::size_t stage);

enum class Direction : std::uint8_t { Forward, Backward };

struct StageAccess {
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  std::uint64_t micro_batches = 1;  // micro-batches that run while its units are gathered
  AccessOrder::Access units;
};

/// True if no parameter is in the graphs of two stages: then micro-batches may run layer by layer,
/// and gradients are still added in the order in which one after the other would add them.
bool keeps_order(const std::vector<StageSpec>& stages);

/// The accesses of one step: for each group of at most `group` micro-batches, forward over all
/// stages and backward in reverse, as far as something is trainable.
std::vector<StageAccess> step_accesses(const Layout& layout, const std::vector<StageSpec>& stages,
                                       std::uint64_t micro_batches, std::uint64_t group);

}  // namespace artesian::zero3
