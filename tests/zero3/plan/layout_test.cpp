// Proves the layout's rules: every parameter lies in exactly one unit, aligned and without overlap;
// tied weights are units of their own; the two thresholds split persistent units off; and any
// number of ranks get equal shares of every image without moving a parameter.
#include "zero3/plan/layout.h"

#include <gtest/gtest.h>

#include "tests/zero3/small_model.h"

namespace artesian::zero3 {
namespace {

void expect_sound(const SmallModel& model, const Layout& layout) {
  ASSERT_EQ(layout.places.size(), model.parameters.size());
  ASSERT_EQ(layout.stages.size(), model.stages.size());
  for (std::size_t unit = 0; unit < layout.units.size(); ++unit) {
    std::uint64_t end = 0;
    std::uint64_t numel = 0;
    for (const auto parameter : layout.units[unit].parameters) {
      const ParameterPlace& place = layout.places[parameter];
      EXPECT_EQ(place.unit, unit);
      EXPECT_EQ(place.first % parameter_alignment, 0u);
      EXPECT_GE(place.first, end);
      EXPECT_EQ(place.numel, model.parameters[parameter].numel());
      end = place.first + place.numel;
      numel += place.numel;
    }
    EXPECT_EQ(layout.units[unit].numel, numel);
    EXPECT_EQ(layout.units[unit].image % image_alignment, 0u);
    EXPECT_GE(layout.units[unit].image, end);
    EXPECT_LT(layout.units[unit].image - end, image_alignment);
  }
}

TEST(Layout, OneUnitAStageAndOneForTheTiedWeight) {
  const SmallModel model = make_small_model(100, 8, 3);
  const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
  expect_sound(model, layout);
  EXPECT_EQ(layout.units.size(), 5u);  // wte, three blocks, ln_f
  EXPECT_EQ(layout.stages.front(), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(layout.stages.back(), (std::vector<std::uint32_t>{4, 0}));
  for (const Unit& unit : layout.units) EXPECT_FALSE(unit.persistent);
}

TEST(Layout, FrozenParametersAreInUnitsOfTheirOwn) {
  SmallModel model = make_small_model(100, 8, 2);
  for (ParameterSpec& parameter : model.parameters) {
    parameter.trainable = parameter.name == "h.1.in" || parameter.name == "ln_f";
    parameter.group = parameter.name == "ln_f" ? 3 : 0;
  }
  const Layout layout = make_layout(model.parameters, model.stages, {8, 1000}, 1);
  expect_sound(model, layout);
  std::vector<std::string> names;
  for (const Unit& unit : layout.units) {
    names.push_back(unit.name);
    for (const auto parameter : unit.parameters) {
      EXPECT_EQ(model.parameters[parameter].trainable, unit.trainable) << unit.name;
      EXPECT_EQ(model.parameters[parameter].group, layout.places[parameter].group);
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"wte.weight", "h.0 (frozen, persistent)",
                                             "h.0 (frozen)", "h.1 (frozen, persistent)", "h.1",
                                             "h.1 (frozen)", "head (persistent)"}));
  EXPECT_EQ(layout.first_trainable_stage, 2u);
}

TEST(Layout, AnUntiedHeadIsAUnitOfItsStage) {
  const SmallModel model = make_small_model(100, 8, 1, /*tied=*/false);
  const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
  expect_sound(model, layout);
  EXPECT_EQ(layout.stages.back().size(), 1u);
}

TEST(Layout, ATiledHeadIsAUnitByItselfAndTakenAsStored) {
  for (const bool tied : {true, false}) {
    SmallModel model = make_small_model(100, 8, 1, tied);
    const auto head = model.stages.back().parameters.back();
    const auto as_stored = [&] {
      const Layout layout = make_layout(model.parameters, model.stages, {}, 1);
      expect_sound(model, layout);
      std::vector<std::string> names;
      for (const Unit& unit : layout.units) {
        if (unit.as_stored) names.push_back(unit.name);
      }
      return names;
    };
    // A table that is only looked up is also read as it is stored.
    const std::vector<std::string> looked_up{"wte.weight"};
    EXPECT_EQ(as_stored(), tied ? std::vector<std::string>() : looked_up);
    model.parameters[head].tiled = true;
    EXPECT_EQ(as_stored(),
              tied ? looked_up : (std::vector<std::string>{"wte.weight", "lm_head.weight"}));
  }
}

TEST(Layout, TheLookedUpParameterIsAUnitOfItsOwn) {
  const std::vector<ParameterSpec> parameters{{.name = "before", .shape = {8}},
                                              {.name = "table", .shape = {100, 8}},
                                              {.name = "after", .shape = {8, 8}}};
  const std::vector<StageSpec> stages{{.name = "all", .parameters = {0, 1, 2}, .lookup = 1}};
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1000}}) {  // persistent or not
    const Layout layout = make_layout(parameters, stages, {limit, 100 * limit}, 1);
    EXPECT_EQ(layout.stages.front(), (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(layout.units[0].parameters, (std::vector<std::uint32_t>{0, 2}));
    EXPECT_EQ(layout.units[1].parameters, (std::vector<std::uint32_t>{1}));
    EXPECT_EQ(layout.units[1].persistent, limit != 0);
  }
}

TEST(Layout, ParametersUpToTheThresholdPersist) {
  const SmallModel model = make_small_model(100, 8, 2);
  const Layout layout = make_layout(model.parameters, model.stages, {32, ~std::uint64_t{0}}, 1);
  expect_sound(model, layout);
  for (std::size_t index = 0; index < model.parameters.size(); ++index) {
    EXPECT_EQ(layout.units[layout.places[index].unit].persistent,
              model.parameters[index].numel() <= 32)
        << model.parameters[index].name;
  }
}

TEST(Layout, TheModelThresholdBoundsTheSum) {
  const SmallModel model = make_small_model(100, 8, 4);
  for (std::uint64_t limit = 0; limit < 200; ++limit) {
    const Layout layout = make_layout(model.parameters, model.stages, {1000, limit}, 1);
    expect_sound(model, layout);
    std::uint64_t persistent = 0;
    for (const Unit& unit : layout.units) persistent += unit.persistent ? unit.numel : 0;
    EXPECT_LE(persistent, limit);
  }
}

TEST(Layout, AThresholdAboveTheLargestKeepsEverything) {
  const SmallModel model = make_small_model(100, 8, 2);
  const Layout layout =
      make_layout(model.parameters, model.stages, {1 << 20, ~std::uint64_t{0}}, 1);
  expect_sound(model, layout);
  for (const Unit& unit : layout.units) EXPECT_TRUE(unit.persistent);
}

TEST(Layout, RanksGetEqualSharesAndMoveNoParameter) {
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1000}}) {
    const SmallModel model = make_small_model(1000, 32, 3);
    const Layout alone = make_layout(model.parameters, model.stages, {limit, 100 * limit}, 1);
    expect_sound(model, alone);
    for (std::uint64_t ranks = 1; ranks <= 7; ++ranks) {
      SCOPED_TRACE(ranks);
      const Layout layout =
          make_layout(model.parameters, model.stages, {limit, 100 * limit}, ranks);
      EXPECT_EQ(layout.stages, alone.stages);
      for (std::size_t index = 0; index < layout.places.size(); ++index) {
        EXPECT_EQ(layout.places[index].unit, alone.places[index].unit);
        EXPECT_EQ(layout.places[index].first, alone.places[index].first);
      }
      for (std::size_t index = 0; index < layout.units.size(); ++index) {
        const Unit& unit = layout.units[index];
        EXPECT_EQ(unit.parameters, alone.units[index].parameters);
        EXPECT_EQ(unit.share % image_alignment, 0u);
        EXPECT_EQ(unit.image, ranks * unit.share);
        const ParameterPlace& last = layout.places[unit.parameters.back()];
        EXPECT_GE(unit.image, last.first + last.numel);
        EXPECT_LT(ranks * (unit.share - image_alignment),
                  last.first + last.numel);  // fewer would not hold them
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
