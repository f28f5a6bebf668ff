#include "zero3/flow/gradient_additions.h"

#include <algorithm>

namespace artesian::zero3 {

void GradientAdditions::begin_step() {
  reached_.assign(plan_.layout.places.size(), false);
  set_ = reached_;
  begun_.assign(plan_.layout.units.size(), false);
  there_.resize(begun_.size());
  for (auto& groups : there_) groups.clear();
}

GradientAdditions::Zeros GradientAdditions::zero_rest(std::uint32_t unit) {
  Zeros zeros{.in_buffer = spilled(unit) && !begun_[unit], .in_memory = {}};
  for (const auto parameter : plan_.layout.units[unit].parameters) {
    if (!set_[parameter] && !spilled(unit)) zeros.in_memory.push_back(parameter);
    set_[parameter] = true;  // of a spilled unit since it entered
  }
  return zeros;
}

void GradientAdditions::undo_zeros(std::uint32_t unit) noexcept {
  for (const auto parameter : plan_.layout.units[unit].parameters) {
    set_[parameter] = reached_[parameter];
  }
}

bool GradientAdditions::is_whole(std::uint32_t unit) const noexcept {
  const auto& parameters = plan_.layout.units[unit].parameters;
  return std::all_of(parameters.begin(), parameters.end(),
                     [this](std::uint32_t parameter) { return set_[parameter]; });
}

/// Returns whether this is the unit's first entry in this step.
bool GradientAdditions::begin(std::uint32_t unit) {
  ARTESIAN_CHECK(spilled(unit), unit);
  const bool first = !begun_[unit];
  there_[unit].resize(static_cast<std::size_t>(plan_.sub_group_count(unit)));
  if (first) there_[unit].assign(there_[unit].size(), true);
  begun_[unit] = true;
  return first;
}

void GradientAdditions::touch(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
                              std::vector<std::uint64_t>& missing) {
  const std::uint64_t each = plan_.sub_group_of(unit);
  for (std::uint64_t group = first / each; group * each < first + count; ++group) {
    ARTESIAN_CHECK(group < there_[unit].size(), unit, group);
    if (there_[unit][static_cast<std::size_t>(group)]) continue;
    there_[unit][static_cast<std::size_t>(group)] = true;
    missing.push_back(group);
  }
}

std::vector<std::uint64_t> GradientAdditions::leave(std::uint32_t unit) {
  ARTESIAN_CHECK(begun_[unit], unit);
  std::vector<std::uint64_t> groups;
  for (std::uint64_t group = 0; group < there_[unit].size(); ++group) {
    if (there_[unit][static_cast<std::size_t>(group)]) groups.push_back(group);
  }
  there_[unit].clear();
  return groups;
}

}  // namespace artesian::zero3
