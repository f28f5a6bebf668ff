#include "zero3/plan/saved_units.h"

namespace artesian::zero3 {
namespace {

SavedUnits units_that_are(const Placement& placement, bool trainable, std::uint64_t rank) {
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
    image.first = unit.share_begin(rank);
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
    saved.images.push_back(std::move(image));
  }
  return saved;
}

}  // namespace

SavedUnits trained_units(const Placement& placement, std::uint64_t rank) {
  return units_that_are(placement, true, rank);
}

SavedUnits frozen_units(const Placement& placement, std::uint64_t rank) {
  return units_that_are(placement, false, rank);
}

}  // namespace artesian::zero3
