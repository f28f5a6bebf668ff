// Proves which data file of a checkpoint has which units of a placement, and in which form: each
// unit is in one file, every element of every parameter in one image, and the marks frozen, split
// and whole are right.
#include "zero3/plan/saved_units.h"

#include <gtest/gtest.h>

#include "tests/zero3/small_model.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {
namespace {

TEST(SavedUnits, HoldEveryParameterOnceInTheFormThatItHas) {
  for (const bool split : {false, true}) {
    for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
      SmallModel model = make_small_model(24, 16, 3);
      for (ParameterSpec& parameter : model.parameters) {
        parameter.trainable = parameter.name.find("h.1.") == std::string::npos;
      }
      Config config;
      config.param_dtype = config.grad_accum_dtype = dtype;
      config.zero.stage = 3;
      const auto placement = make_placement({.parameters = &model.parameters,
                                             .stages = &model.stages,
                                             .config = &config,
                                             .device_bytes = 1 << 30,
                                             .host_bytes = 1 << 30,
                                             .split_master = split});
      ASSERT_TRUE(placement.has_value()) << placement.error().to_string();
      const SavedUnits trained = trained_units(*placement);
      const SavedUnits frozen = frozen_units(*placement);
      std::vector<int> seen(model.parameters.size());
      for (const SavedUnits* units : {&trained, &frozen}) {
        ASSERT_EQ(units->units.size(), units->images.size());
        for (std::size_t index = 0; index < units->units.size(); ++index) {
          const std::uint32_t unit = units->units[index];
          const SavedImage& image = units->images[index];
          EXPECT_EQ(units->image_of[unit], index);
          EXPECT_EQ(image.count, placement->layout.units[unit].image);
          const StateForm expected = units == &frozen ? StateForm::Frozen
                                     : placement->units[unit].master == Master::Split
                                         ? StateForm::Split
                                         : StateForm::Whole;
          EXPECT_EQ(image.form, expected);
          for (const auto& place : image.parameters) {
            ++seen[place.parameter];
            EXPECT_EQ(place.numel, model.parameters[place.parameter].numel());
            EXPECT_LE(place.first + place.numel, image.count);
            EXPECT_EQ(model.parameters[place.parameter].trainable, units == &trained);
          }
        }
      }
      EXPECT_EQ(seen, std::vector<int>(model.parameters.size(), 1));
      for (std::uint32_t unit = 0; unit < placement->layout.units.size(); ++unit) {
        EXPECT_EQ(trained.image_of[unit] == SavedUnits::nowhere,
                  frozen.image_of[unit] != SavedUnits::nowhere);
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
