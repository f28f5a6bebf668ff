// What a pass over sub-groups needs of the staging ring for one of them: an item to read it into,
// one to write from, or none, where the host works on it in its homes. Pure.
#pragma once

#include <cstdint>

#include "tiering/ring_order.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// What a pass does to each sub-group.
struct GroupPass {
  bool read_state = false;
  bool read_grad = false;
  bool write_state = false;
  bool write_grad = false;     // write gradients of units that have them on NVMe
  bool restore_param = false;  // read old parameters, or the state to restore them from
};

/// The pass that updates: the optimizer's.
inline constexpr GroupPass update_pass{.read_state = true, .read_grad = true, .write_state = true};

/// True if reading the unit's state takes its parameters, too.
bool state_has_param(const Placement& placement, std::uint32_t unit) noexcept;

tiering::RingNeed ring_need(const Placement& placement, const tiering::RingTask& task,
                            const GroupPass& pass) noexcept;

}  // namespace artesian::zero3
