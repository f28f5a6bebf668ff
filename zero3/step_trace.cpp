#include "zero3/step_trace.h"

#include <algorithm>

namespace artesian::zero3 {

Trace::Access backward_units(const Layout& layout, const std::vector<StageSpec>& stages,
                             std::size_t stage) {
  Trace::Access units = layout.stages[stage];
  const auto& lookup = stages[stage].lookup;
  if (lookup.has_value()) std::erase(units, layout.places[*lookup].unit);
  return units;
}

std::vector<StageAccess> step_trace(const Layout& layout, const std::vector<StageSpec>& stages,
                                    std::uint64_t micro_batches, std::uint64_t at_once) {
  std::vector<StageAccess> accesses;
  for (std::uint64_t done = 0; done < micro_batches; done += at_once) {
    const std::uint64_t group = std::min(at_once, micro_batches - done);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      accesses.push_back({stage, Direction::Forward, group, layout.stages[stage]});
    }
    for (std::size_t stage = stages.size(); stage-- > 0;) {
      accesses.push_back(
          {stage, Direction::Backward, group, backward_units(layout, stages, stage)});
    }
  }
  return accesses;
}

}  // namespace artesian::zero3
