// What a pass over sub-groups needs of the staging ring for one of them: an item to read into, an
// item to write from, or none if the host works on the sub-group in its homes. Pure.
#pragma once

#include <cstdint>

#include "tiering/ring_order.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// The operations of a pass on each sub-group.
struct GroupPass {
  bool read_state = false;
  bool read_grad = false;
  bool write_state = false;
  bool write_grad = false;     // write gradients whose home is NVMe
  bool restore_param = false;  // read old parameters, or the state from which they are restored
};

/// The optimizer's pass, which updates.
inline constexpr GroupPass update_pass{.read_state = true, .read_grad = true, .write_state = true};

/// True if reading the unit's state also reads its parameters.
bool state_has_param(const Placement& placement, std::uint32_t unit) noexcept;

tiering::RingNeed ring_need(const Placement& placement, const tiering::RingTask& task,
                            const GroupPass& pass) noexcept;

}  // namespace artesian::zero3
