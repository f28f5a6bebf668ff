// The order in which a training step uses its units: the order of UnitGraphs, for code that has no
// tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/access_order.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

/// The units that a stage's backward needs: not the looked-up parameter, as only its rows'
/// gradients are needed.
AccessOrder::Access backward_units(const Layout& layout, const std::vector<StageSpec>& stages,
                                   std::size_t stage);

enum class Direction : std::uint8_t { Forward, Backward };

struct StageAccess {
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  std::uint64_t micro_batches = 1;  // micro-batches that run while the stage's units are gathered
  AccessOrder::Access units;
};

/// True if no parameter is in the graphs of two stages: then micro-batches that run layer by layer
/// add gradients in the same order as micro-batches that run one after the other.
bool keeps_order(const std::vector<StageSpec>& stages);

/// The accesses of one step: for each group of at most `group` micro-batches, forward over all
/// stages and backward in reverse, down to the first trainable stage.
std::vector<StageAccess> step_accesses(const Layout& layout, const std::vector<StageSpec>& stages,
                                       std::uint64_t micro_batches, std::uint64_t group);

}  // namespace artesian::zero3
