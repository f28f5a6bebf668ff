#include "zero3/trace.h"

#include <algorithm>

namespace artesian::zero3 {

std::uint64_t Trace::next_use(std::size_t index, std::uint32_t unit) const noexcept {
  for (std::size_t ahead = 1; ahead <= accesses_.size(); ++ahead) {
    const Access& access = accesses_[(index + ahead) % accesses_.size()];
    if (std::find(access.begin(), access.end(), unit) != access.end()) return ahead;
  }
  return never;
}

std::uint64_t Trace::reuse_distance(std::size_t index, std::uint32_t unit,
                                    const std::vector<std::uint64_t>& numel) const noexcept {
  std::uint64_t distance = 0;
  for (std::size_t ahead = 1; ahead <= accesses_.size(); ++ahead) {
    const Access& access = accesses_[(index + ahead) % accesses_.size()];
    if (std::find(access.begin(), access.end(), unit) != access.end()) return distance;
    for (const auto touched : access) distance += numel[touched];
  }
  return never;
}

}  // namespace artesian::zero3
