#include "zero3/plan/saved_units.h"

#include "base/check.h"

namespace artesian::zero3 {
namespace {

/// The parts of ranks [first, end) of the units.
SavedUnits units_that_are(const Placement& placement, bool trainable, std::uint64_t first,
                          std::uint64_t end) {
  const Layout& layout = placement.layout;
  SavedUnits saved;
  saved.image_of.assign(layout.units.size(), SavedUnits::nowhere);
  for (std::uint32_t index = 0; index < layout.units.size(); ++index) {
    const Unit& unit = layout.units[index];
    if (unit.trainable != trainable) continue;
    SavedImage image;
    for (const std::uint32_t parameter : unit.parameters) {
      const ParameterPlace& place = layout.places[parameter];
      image.parameters.push_back({parameter, place.first, place.numel});
    }
    image.count = unit.share;
    image.sub_group = placement.sub_group_of(index);
    image.form = !trainable                                       ? StateForm::Frozen
                 : placement.units[index].master == Master::Split ? StateForm::Split
                                                                  : StateForm::Whole;
    image.frozen_dtype = placement.param_dtype;
    image.moments = placement.moments_of(index);
    image.moment_dtype = placement.moment_dtype;
    saved.image_of[index] = saved.images.size();
    saved.units.push_back(index);
    for (std::uint64_t rank = first; rank < (unit.is_cut() ? end : first + 1); ++rank) {
      image.first = unit.share_begin(rank);
      saved.images.push_back(image);
    }
  }
  return saved;
}

}  // namespace

std::size_t SavedUnits::image_at(std::uint32_t unit, std::uint64_t element) const noexcept {
  ARTESIAN_CHECK(unit < image_of.size() && image_of[unit] < images.size(), unit);
  const SavedImage& first = images[image_of[unit]];
  ARTESIAN_CHECK(element >= first.first, unit, element);
  const std::size_t image = image_of[unit] + (element - first.first) / first.count;
  ARTESIAN_CHECK(image < images.size(), unit, element);
  return image;
}

SavedUnits trained_units(const Placement& placement, std::uint64_t rank) {
  return units_that_are(placement, true, rank, rank + 1);
}

SavedUnits frozen_units(const Placement& placement) {
  return units_that_are(placement, false, 0, placement.ranks);
}

}  // namespace artesian::zero3
