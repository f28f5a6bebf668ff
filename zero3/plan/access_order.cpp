#include "zero3/plan/access_order.h"

#include <algorithm>

namespace artesian::zero3 {

void AccessOrder::record(const Access& access) {
  std::uint64_t elements = 0;
  for (const auto unit : access) {
    ARTESIAN_CHECK(unit < numel_.size(), unit, numel_.size());
    const bool fresh = uses_[unit].empty() || uses_[unit].back() < accesses_.size();
    ARTESIAN_CHECK(fresh, unit);  // an access has each unit once
    elements += numel_[unit];
    uses_[unit].push_back(accesses_.size());
  }
  touched_.push_back(touched_.back() + elements);
  accesses_.push_back(access);
  ARTESIAN_CHECK(touched_.size() == accesses_.size() + 1, touched_.size(), accesses_.size());
}

void AccessOrder::truncate(std::size_t size) {
  while (accesses_.size() > size) {
    for (const auto unit : accesses_.back()) {
      ARTESIAN_CHECK(uses_[unit].back() + 1 == accesses_.size(), unit, accesses_.size());
      uses_[unit].pop_back();
    }
    touched_.pop_back();
    accesses_.pop_back();
  }
}

std::size_t AccessOrder::find(const Access& access, std::size_t first,
                              std::size_t end) const noexcept {
  if (first < accesses_.size() && first < end && accesses_[first] == access) return first;
  if (access.empty()) return nowhere;
  const auto& uses = uses_[access.front()];
  for (auto use = std::lower_bound(uses.begin(), uses.end(), first); use != uses.end(); ++use) {
    if (*use >= end) break;
    if (accesses_[static_cast<std::size_t>(*use)] == access) return static_cast<std::size_t>(*use);
  }
  return nowhere;
}

std::uint64_t AccessOrder::next_use(std::size_t index, std::uint32_t unit) const noexcept {
  const auto& uses = uses_[unit];
  if (uses.empty()) return never;
  const std::size_t first = index + 1;  // the first access that counts; 0 for an index of -1
  ARTESIAN_CHECK(first <= accesses_.size(), first, accesses_.size());
  const auto next = std::lower_bound(uses.begin(), uses.end(), first);
  return (next != uses.end() ? *next : uses.front() + accesses_.size()) - first + 1;
}

std::uint64_t AccessOrder::reuse_distance(std::size_t index, std::uint32_t unit) const noexcept {
  const std::uint64_t ahead = next_use(index, unit);
  if (ahead == never) return never;
  const std::size_t first = index + 1;
  const std::size_t use = first + ahead - 1;
  if (use < accesses_.size()) return touched_[use] - touched_[first];
  // The next use is past the end of the order, in its next round, and before this access.
  ARTESIAN_CHECK(use - accesses_.size() < first, use, first);
  return touched_.back() - touched_[first] + touched_[use - accesses_.size()];
}

}  // namespace artesian::zero3
