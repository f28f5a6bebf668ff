#include "zero3/plan/moves.h"

#include <algorithm>

namespace artesian::zero3 {

using tiering::Route;
using tiering::Tier;

Moved& Moved::operator+=(const Moved& other) noexcept {
  nvme_read += other.nvme_read;
  nvme_write += other.nvme_write;
  to_device += other.to_device;
  to_host += other.to_host;
  bus += other.bus;
  return *this;
}

Moved& Moved::operator/=(std::uint64_t parts) noexcept {
  for (auto* const bytes : {&nvme_read, &nvme_write, &to_device, &to_host, &bus}) *bytes /= parts;
  return *this;
}

MovedByKind& MovedByKind::operator/=(std::uint64_t parts) noexcept {
  for (Moved* const kind : {&param, &grad, &optimizer, &input}) *kind /= parts;
  return *this;
}

MovedByKind& MovedByKind::operator+=(const MovedByKind& other) noexcept {
  param += other.param;
  grad += other.grad;
  optimizer += other.optimizer;
  input += other.input;
  return *this;
}

Moved MovedByKind::total() const noexcept {
  Moved sum = param;
  sum += grad;
  sum += optimizer;
  sum += input;
  return sum;
}

MovedByKind update_moves(const Placement& plan, std::uint32_t unit, bool live) {
  if (!plan.layout.units[unit].trainable) return {};
  const UnitPlacement& place = plan.units[unit];
  const std::uint64_t updated =  // parameters that this rank updates
      plan.layout.units[unit].share * dtype_size(plan.param_dtype);
  MovedByKind moved;
  const std::uint64_t whole = plan.layout.units[unit].image * dtype_size(plan.param_dtype);
  const bool held = live || !plan.params_cut;  // parameters updated by other ranks are received
  if (held) moved.param.bus = whole - std::min(updated, whole);
  const bool between = plan.device_group && plan.host_route(place.param) == Route::Queues;
  // The home holds all of them, and this rank's host memory passes them on.
  const bool gathers = plan.ranks > 1 && !plan.params_cut && !between;
  const std::uint64_t fresh = gathers ? whole : updated;
  if (place.updated_on_device()) return moved;
  const std::uint64_t state = plan.optimizer_bytes(unit);
  moved.optimizer.nvme_read = moved.optimizer.nvme_write =
      plan.optimizer_bytes_in(Tier::Nvme, unit);
  if (place.grad == Tier::Nvme) moved.grad.nvme_read = plan.grad_bytes(unit);
  if (place.param == Tier::Nvme) {
    moved.param.nvme_write = updated;
    if (plan.update_reads_param(unit)) moved.param.nvme_read = updated;
  }
  if (plan.host_route(place.optimizer) == Route::Queues)
    moved.optimizer.to_host = moved.optimizer.to_device = state;
  if (plan.host_route(place.param) == Route::Queues) {
    moved.param.to_device = fresh;
    if (plan.update_reads_param(unit)) moved.param.to_host = updated;
    if (gathers) moved.param.to_host += updated;  // for the other ranks
  }
  if (live && place.gather == Route::Queues) moved.param.to_device += fresh;
  moved += measure_moves(plan, unit);
  return moved;
}

MovedByKind measure_moves(const Placement& plan, std::uint32_t unit) {
  MovedByKind moved;
  if (!plan.measures || !plan.layout.units[unit].trainable) return moved;
  const UnitPlacement& place = plan.units[unit];
  moved.optimizer.nvme_read = plan.optimizer_bytes_in(Tier::Nvme, unit);
  if (place.grad == Tier::Nvme) moved.grad.nvme_read = plan.grad_bytes(unit);
  const std::uint64_t param = plan.layout.units[unit].share * dtype_size(plan.param_dtype);
  if (!plan.update_reads_param(unit)) return moved;
  if (place.param == Tier::Nvme) moved.param.nvme_read = param;
  if (plan.host_route(place.param) == Route::Queues) moved.param.to_host = param;
  return moved;
}

Moved restore_moves(const Placement& plan, std::uint32_t unit) {
  const std::uint64_t param = plan.layout.units[unit].share * dtype_size(plan.param_dtype);
  const bool on_disk = plan.optimizer_bytes_in(Tier::Nvme, unit) != 0;
  Moved moved;
  if (on_disk) moved.nvme_read = plan.update_reads_param(unit) ? param : plan.optimizer_bytes(unit);
  if (plan.units[unit].param == Tier::Nvme) moved.nvme_write = param;
  return moved;
}

}  // namespace artesian::zero3
