#include "zero3/plan/placement.h"

#include <algorithm>

#include "base/check.h"

namespace artesian::zero3 {

using tiering::Route;
using tiering::Tier;

std::uint64_t Placement::param_bytes(std::uint32_t unit) const noexcept {
  ARTESIAN_CHECK(unit < layout.units.size(), unit, layout.units.size());
  return param_numel(layout.units[unit]) * dtype_size(param_dtype);
}

std::uint64_t Placement::grad_bytes(std::uint32_t unit) const noexcept {
  if (!layout.units[unit].trainable) return 0;
  return layout.units[unit].share * dtype_size(grad_dtype);
}

std::uint64_t Placement::largest_stage_grad_bytes() const noexcept {
  std::uint64_t largest = 0;
  for (const auto& stage : layout.stages) {
    std::uint64_t bytes = 0;
    for (const auto unit : stage) bytes += units[unit].grad == Tier::Device ? 0 : grad_bytes(unit);
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::uint64_t Placement::optimizer_bytes(std::uint32_t unit) const noexcept {
  return layout.units[unit].share * state_size(unit);
}

std::uint64_t Placement::optimizer_bytes_in(Tier tier, std::uint32_t unit) const noexcept {
  const UnitPlacement& place = units[unit];
  if (place.optimizer_homes.empty()) return place.optimizer == tier ? optimizer_bytes(unit) : 0;
  ARTESIAN_CHECK(place.optimizer_homes.size() == sub_group_count(unit), unit);
  std::uint64_t bytes = 0;
  for (std::uint64_t index = 0; index < place.optimizer_homes.size(); ++index) {
    if (optimizer_home(unit, index) == tier) bytes += record_bytes(unit, index);
  }
  return bytes;
}

std::uint64_t Placement::state_size(std::uint32_t unit) const noexcept {
  ARTESIAN_CHECK(unit < units.size(), unit, units.size());
  const std::uint64_t kept = moments_of(unit).count() * dtype_size(moment_dtype);
  switch (units[unit].master) {
    case Master::Own: return kept + 4;
    case Master::Parameter: return kept;
    case Master::Split: return kept + 2;
    case Master::None: return 0;
  }
  return kept + 4;
}

std::uint64_t Placement::state_size_max() const noexcept {
  std::uint64_t most = 0;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) most = std::max(most, state_size(unit));
  return most;
}

std::uint64_t Placement::sub_group_max(std::uint64_t size) const noexcept {
  for (const Unit& unit : layout.units) size = std::max(size, unit.rows != 0 ? unit.image : 0);
  return size;
}

std::uint64_t Placement::record_bytes_max(std::uint64_t size) const noexcept {
  std::uint64_t most = 0;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    const bool matrix = layout.units[unit].rows != 0;
    most = std::max(most, (matrix ? layout.units[unit].image : size) * state_size(unit));
  }
  return most;
}

std::uint64_t matrix_bytes(const Unit& unit) noexcept {
  if (unit.rows == 0) return 0;
  const std::uint64_t columns = unit.numel / unit.rows;
  const std::uint64_t least = std::min(unit.rows, columns);
  return (unit.image + 2 * unit.numel + 4 * least * least) * sizeof(float);
}

std::uint64_t Placement::record_bytes(std::uint32_t unit, std::uint64_t index) const noexcept {
  return sub_group_numel(unit, index) * state_size(unit);
}

std::uint64_t Placement::device_homes() const noexcept {
  std::uint64_t bytes = expansion_bytes + grad_scratch_bytes + exchange.device_bytes();
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].param == Tier::Device) bytes += param_bytes(unit);
    bytes += optimizer_bytes_in(Tier::Device, unit);
    if (units[unit].grad == Tier::Device) bytes += grad_bytes(unit);
  }
  return bytes;
}

std::uint64_t Placement::sub_group_count(std::uint32_t unit) const noexcept {
  ARTESIAN_CHECK(sub_group != 0 && unit < layout.units.size(), sub_group, unit);
  const std::uint64_t each = sub_group_of(unit);
  return (layout.units[unit].share + each - 1) / each;
}

std::uint64_t Placement::sub_group_numel(std::uint32_t unit, std::uint64_t index) const noexcept {
  const std::uint64_t share = layout.units[unit].share;
  const std::uint64_t each = sub_group_of(unit);
  ARTESIAN_CHECK(index * each < share, unit, index, share);
  return std::min(each, share - index * each);
}

tiering::Tier Placement::optimizer_home(std::uint32_t unit, std::uint64_t index) const noexcept {
  const UnitPlacement& place = units[unit];
  if (place.optimizer_homes.empty()) return place.optimizer;
  ARTESIAN_CHECK(index < place.optimizer_homes.size(), unit, index);
  return place.optimizer_homes[static_cast<std::size_t>(index)];
}

namespace {

Route gather_of(const Placement& plan, std::size_t unit) noexcept {
  const UnitPlacement& place = plan.units[unit];
  const bool in_reach =
      plan.separate_device ? place.param == Tier::Device : place.param != Tier::Nvme;
  const bool cut = plan.params_cut && plan.layout.units[unit].is_cut();
  if (plan.param_dtype == place.computed && in_reach && !cut) {
    return plan.separate_device ? Route::OnDevice : Route::InPlace;
  }
  if (plan.separate_device) return Route::Queues;
  return place.param == Tier::Nvme ? Route::Disk : Route::Memory;
}

/// With a separate device, gradients are added there, or copied to the host, which adds them.
Route gradient_of(const Placement& plan, const UnitPlacement& place) noexcept {
  if (!plan.separate_device) return place.grad == Tier::Nvme ? Route::Disk : Route::InPlace;
  return place.grad == Tier::Device ? Route::OnDevice : Route::Queues;
}

}  // namespace

/// The maker of the update must be known first.
Placement with_routes(Placement plan) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    plan.units[unit].gather = gather_of(plan, unit);
    plan.units[unit].gradient = gradient_of(plan, plan.units[unit]);
  }
  return plan;
}

}  // namespace artesian::zero3
