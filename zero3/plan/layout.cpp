#include "zero3/plan/layout.h"

#include <array>

#include "base/check.h"
#include "base/units.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint32_t no_unit = ~std::uint32_t{0};

std::vector<std::uint32_t> count_uses(std::size_t parameter_count,
                                      const std::vector<StageSpec>& stages) {
  std::vector<std::uint32_t> uses(parameter_count, 0);
  for (const StageSpec& stage : stages) {
    for (const auto parameter : stage.parameters) ++uses.at(parameter);
  }
  return uses;
}

std::vector<bool> choose_persistent(const std::vector<ParameterSpec>& parameters,
                                    const PersistenceLimits& limits) {
  std::vector<bool> persistent(parameters.size(), false);
  std::uint64_t total = 0;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const std::uint64_t numel = parameters[index].numel();
    ARTESIAN_CHECK(total <= limits.model_numel_max, total, limits.model_numel_max);
    if (numel > limits.param_numel_max || limits.model_numel_max - total < numel) continue;
    persistent[index] = true;
    total += numel;
  }
  return persistent;
}

void append(Layout& layout, std::uint32_t unit_index, std::uint32_t parameter,
            const ParameterSpec& spec) {
  Unit& unit = layout.units[unit_index];
  // Each parameter has one place.
  ARTESIAN_CHECK(layout.places[parameter].unit == no_unit, parameter);
  ARTESIAN_CHECK(unit.trainable == spec.trainable, parameter, unit_index);
  const std::uint64_t first = round_up(unit.image, parameter_alignment);
  const std::uint64_t numel = spec.numel();
  layout.places[parameter] = {unit_index, first, numel, spec.group};
  unit.parameters.push_back(parameter);
  unit.numel += numel;
  unit.image = first + numel;
}

std::uint32_t add_unit(Layout& layout, std::string name, bool persistent, bool trainable) {
  Unit unit;
  unit.name = std::move(name);
  unit.persistent = persistent;
  unit.trainable = trainable;
  layout.units.push_back(std::move(unit));
  return static_cast<std::uint32_t>(layout.units.size() - 1);
}

std::string name_of(const StageSpec& stage, bool persistent, bool trainable) {
  if (trainable) return persistent ? stage.name + " (persistent)" : stage.name;
  return stage.name + (persistent ? " (frozen, persistent)" : " (frozen)");
}

/// Checks that a unit's parameters follow one another, each at a multiple of a norm's leaf, and
/// that its image consists of one share per rank: Note [Shares].
void check_unit(const Layout& layout, std::uint32_t index) {
  const Unit& unit = layout.units[index];
  std::uint64_t end = 0;
  std::uint64_t numel = 0;
  for (const auto parameter : unit.parameters) {
    const ParameterPlace& place = layout.places[parameter];
    ARTESIAN_CHECK(place.unit == index, place.unit, index);
    ARTESIAN_CHECK(place.first >= end && place.first % parameter_alignment == 0, place.first, end);
    end = place.first + place.numel;
    numel += place.numel;
  }
  ARTESIAN_CHECK(numel == unit.numel, numel, unit.numel);
  ARTESIAN_CHECK(end <= unit.image && unit.image % unit.share == 0, end, unit.image);
  ARTESIAN_CHECK(unit.share % image_alignment == 0, unit.share);
}

/// Checks that each parameter is in one unit, and that each stage gathers existing units.
void check_layout(const Layout& layout) {
  std::size_t parameters = 0;
  for (std::uint32_t unit = 0; unit < layout.units.size(); ++unit) {
    check_unit(layout, unit);
    parameters += layout.units[unit].parameters.size();
  }
  ARTESIAN_CHECK(parameters == layout.places.size(), parameters, layout.places.size());
  for (const auto& stage : layout.stages) {
    for (const auto unit : stage) ARTESIAN_CHECK(unit < layout.units.size(), unit);
  }
}

}  // namespace

Layout make_layout(const std::vector<ParameterSpec>& parameters,
                   const std::vector<StageSpec>& stages, const PersistenceLimits& persistence,
                   std::uint64_t ranks, Matrices matrices, Frozen frozen) {
  ARTESIAN_CHECK(ranks > 0);
  const auto uses = count_uses(parameters.size(), stages);
  const auto persistent = choose_persistent(parameters, persistence);
  Layout layout;
  layout.places.assign(parameters.size(), {.unit = no_unit});
  for (const StageSpec& stage : stages) {
    std::vector<std::uint32_t> stage_units;
    std::array<std::uint32_t, 4> shared_units{no_unit, no_unit, no_unit, no_unit};
    for (const auto parameter : stage.parameters) {
      if (layout.places[parameter].unit != no_unit) {  // a tied weight that was seen before
        stage_units.push_back(layout.places[parameter].unit);
        continue;
      }
      const bool stays = persistent[parameter];
      const ParameterSpec& spec = parameters[parameter];
      const bool tiled = spec.tiled;
      const bool shared = uses[parameter] > 1;
      const bool whole = matrices == Matrices::Apart && spec.matrix && spec.trainable;
      if (shared || stage.lookup == parameter || tiled || whole) {
        const auto unit = add_unit(layout, spec.name, stays, spec.trainable);
        layout.units[unit].as_stored = tiled || (!shared && !whole);
        if (whole) {
          const auto last = spec.shape.end() - 1;
          layout.units[unit].rows = static_cast<std::uint64_t>(spec.shape.front());
          layout.units[unit].aspect = static_cast<double>(*(last - 1)) / static_cast<double>(*last);
        }
        stage_units.push_back(unit);
        append(layout, unit, parameter, spec);
        continue;
      }
      std::uint32_t& unit = shared_units[(stays ? 1u : 0u) + (spec.trainable ? 0u : 2u)];
      if (unit == no_unit) {
        unit = add_unit(layout, name_of(stage, stays, spec.trainable), stays, spec.trainable);
        stage_units.push_back(unit);
      }
      append(layout, unit, parameter, spec);
    }
    layout.stages.push_back(std::move(stage_units));
  }
  layout.first_trainable_stage = first_trainable_stage(parameters, stages);
  for (const auto& place : layout.places) ARTESIAN_CHECK(place.unit != no_unit);
  for (Unit& unit : layout.units) {
    const std::uint64_t shares = frozen == Frozen::Whole && !unit.trainable ? 1 : ranks;
    unit.share = round_up((unit.image + shares - 1) / shares, image_alignment);
    unit.image = shares * unit.share;
  }
  check_layout(layout);
  return layout;
}

}  // namespace artesian::zero3
