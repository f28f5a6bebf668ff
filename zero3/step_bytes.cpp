#include "zero3/step_bytes.h"

#include <algorithm>

namespace artesian::zero3 {
namespace {

using tiering::Tier;

/// The spilled gradients of one unit, as Gradients accumulates them.
class SpilledUnit {
 public:
  SpilledUnit(const Placement& placement, std::uint32_t unit)
      : placement_(placement), unit_(unit) {}

  /// One addition. The first of a step writes the whole unit, later ones change sub-groups.
  void add(const std::vector<std::uint32_t>& parameters) {
    for (std::uint64_t group = 0; group < placement_.sub_group_count(unit_); ++group) {
      const bool reached =
          std::any_of(parameters.begin(), parameters.end(),
                      [&](std::uint32_t parameter) { return overlaps(parameter, group); });
      if (started_ && !reached) continue;
      if (started_) bytes.read += group_bytes(group);
      bytes.written += group_bytes(group);
    }
    started_ = true;
  }
  void start() {
    if (!started_) add({});
  }
  void read_all() {
    for (std::uint64_t group = 0; group < placement_.sub_group_count(unit_); ++group) {
      bytes.read += group_bytes(group);
    }
  }

  StepBytes bytes;

 private:
  bool overlaps(std::uint32_t parameter, std::uint64_t group) const {
    const ParameterPlace& place = placement_.layout.places[parameter];
    const std::uint64_t first = group * placement_.sub_group;
    return place.first < first + placement_.sub_group && first < place.first + place.numel;
  }
  std::uint64_t group_bytes(std::uint64_t group) const {
    return placement_.sub_group_numel(unit_, group) * dtype_size(placement_.grad_dtype);
  }

  const Placement& placement_;
  const std::uint32_t unit_;
  bool started_ = false;
};

/// The stage's parameters of a unit whose gradients are dense.
std::vector<std::uint32_t> dense(const Placement& placement, const StageSpec& stage,
                                 std::uint32_t unit) {
  std::vector<std::uint32_t> parameters;
  for (const auto parameter : stage.parameters) {
    const bool looked_up = stage.lookup == parameter;
    if (!looked_up && placement.layout.places[parameter].unit == unit) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

}  // namespace

StepBytes optimizer_bytes(const Placement& placement) {
  StepBytes bytes;
  for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
    const UnitPlacement& place = placement.units[unit];
    for (std::uint64_t group = 0; group < placement.sub_group_count(unit); ++group) {
      const std::uint64_t numel = placement.sub_group_numel(unit, group);
      if (placement.optimizer_home(unit, group) == Tier::Nvme) {
        bytes.read += numel * 4 * placement.states;
        bytes.written += numel * 4 * placement.states;
      }
      if (place.param == Tier::Nvme) {
        const std::uint64_t param = numel * dtype_size(placement.param_dtype);
        bytes.read += placement.states == 2 ? param : 0;
        bytes.written += param;
      }
      if (place.grad == Tier::Nvme) bytes.read += numel * dtype_size(placement.grad_dtype);
    }
  }
  return bytes;
}

StepBytes gradient_bytes(const Placement& placement, const std::vector<StageSpec>& stages,
                         std::uint64_t micro_batches) {
  StepBytes total;
  for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
    if (placement.units[unit].grad != Tier::Nvme) continue;
    SpilledUnit spilled(placement, unit);
    for (std::uint64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      for (std::size_t stage = stages.size(); stage-- > 0;) {
        const auto parameters = dense(placement, stages[stage], unit);
        if (!parameters.empty()) spilled.add(parameters);
      }
    }
    spilled.start();
    const auto& lookup = stages.front().lookup;
    if (lookup.has_value() && placement.layout.places[*lookup].unit == unit) {
      spilled.add({*lookup});
    }
    spilled.read_all();  // for the norm
    total.read += spilled.bytes.read;
    total.written += spilled.bytes.written;
  }
  return total;
}

}  // namespace artesian::zero3
