#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3/plan/checkpoint_layout.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// The units in one data file of a checkpoint, and their images: a rank's part of each unit, or all
/// ranks' parts, one after the other.
struct SavedUnits {
  std::vector<std::uint32_t> units;
  std::vector<SavedImage> images;
  std::vector<std::size_t>
      image_of;  // by unit: index of its first image; nowhere if it is not in this file
  static constexpr std::size_t nowhere = ~std::size_t{0};
  /// Index of the image that has this element of the unit's whole image.
  std::size_t image_at(std::uint32_t unit, std::uint64_t element) const noexcept;
};

/// A rank's part of the trained units.
SavedUnits trained_units(const Placement& placement, std::uint64_t rank = 0);
/// All parts of the frozen units, which are in a file of their own, as their bytes are the same in
/// each checkpoint.
SavedUnits frozen_units(const Placement& placement);

}  // namespace artesian::zero3
