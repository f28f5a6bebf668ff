#include "zero3/flow/ring_need.h"

#include "base/check.h"

namespace artesian::zero3 {

using tiering::RingNeed;
using tiering::Route;
using tiering::Tier;

bool state_has_param(const Placement& placement, std::uint32_t unit) noexcept {
  return placement.units[unit].master == Master::None || placement.update_reads_param(unit);
}

RingNeed ring_need(const Placement& placement, const tiering::RingTask& task,
                   const GroupPass& pass) noexcept {
  ARTESIAN_CHECK(task.unit < placement.units.size(), task.unit);
  const UnitPlacement& place = placement.units[task.unit];
  const auto passes = [&](Tier home) { return placement.host_route(home) != Route::InPlace; };
  const bool frozen = place.master == Master::None;
  const bool record = !frozen && passes(placement.optimizer_home(task.unit, task.index));
  const bool param = passes(place.param);
  if (pass.restore_param) return record || param ? RingNeed::ToRead : RingNeed::Nothing;
  const bool reads_state =
      pass.read_state && (record || (param && state_has_param(placement, task.unit)));
  const bool reads_grad = pass.read_grad && !frozen && passes(place.grad);
  if (reads_state || reads_grad) return RingNeed::ToRead;
  const bool writes = pass.write_grad || (pass.write_state && (record || param));
  return writes ? RingNeed::ToWrite : RingNeed::Nothing;
}

}  // namespace artesian::zero3
