#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3/plan/checkpoint_layout.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// The units in one data file of a checkpoint, and the image of each, in the same order.
struct SavedUnits {
  std::vector<std::uint32_t> units;
  std::vector<SavedImage> images;
  std::vector<std::size_t>
      image_of;  // by unit: index of its image; nowhere if it is not in this file
  static constexpr std::size_t nowhere = ~std::size_t{0};
};

/// A rank's part of the units. Trained and frozen ones are separate, as frozen bytes are the same
/// in each checkpoint.
SavedUnits trained_units(const Placement& placement, std::uint64_t rank = 0);
SavedUnits frozen_units(const Placement& placement, std::uint64_t rank = 0);

}  // namespace artesian::zero3
