#include "zero3/plan/step_accesses.h"

#include <algorithm>
#include <set>

namespace artesian::zero3 {

AccessOrder::Access backward_units(const Layout& layout, const std::vector<StageSpec>& stages,
                                   std::size_t stage) {
  ARTESIAN_CHECK(stage < layout.stages.size(), stage, layout.stages.size());
  AccessOrder::Access units = layout.stages[stage];
  const auto& lookup = stages[stage].lookup;
  if (lookup.has_value()) std::erase(units, layout.places[*lookup].unit);
  return units;
}

bool keeps_order(const std::vector<StageSpec>& stages) {
  std::set<std::uint32_t> in_graph;
  for (const StageSpec& stage : stages) {
    for (const auto parameter : graph_parameters(stage)) {
      if (!in_graph.insert(parameter).second) return false;
    }
  }
  return true;
}

std::vector<StageAccess> step_accesses(const Layout& layout, const std::vector<StageSpec>& stages,
                                       std::uint64_t micro_batches, std::uint64_t group) {
  ARTESIAN_CHECK(group > 0);
  ARTESIAN_CHECK(layout.stages.size() == stages.size(), layout.stages.size(), stages.size());
  std::vector<StageAccess> accesses;
  for (std::uint64_t done = 0; done < micro_batches; done += group) {
    const std::uint64_t count = std::min(group, micro_batches - done);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      accesses.push_back({stage, Direction::Forward, count, layout.stages[stage]});
    }
    for (std::size_t stage = stages.size(); stage-- > layout.first_trainable_stage;) {
      accesses.push_back(
          {stage, Direction::Backward, count, backward_units(layout, stages, stage)});
    }
  }
  return accesses;
}

}  // namespace artesian::zero3
