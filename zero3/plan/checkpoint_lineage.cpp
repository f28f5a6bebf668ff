#include "zero3/plan/checkpoint_lineage.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace artesian::zero3 {

std::vector<std::size_t> line_of(const std::vector<FoundCheckpoint>& found,
                                 const std::string& tag) {
  std::vector<std::size_t> line;
  auto at = std::find_if(found.begin(), found.end(),
                         [&](const FoundCheckpoint& each) { return each.tag == tag; });
  while (at != found.end()) {
    ARTESIAN_CHECK(line.size() < found.size(), line.size());
    line.push_back(static_cast<std::size_t>(at - found.begin()));
    const CheckpointLink& child = at->link;
    // Serials decrease along the line, so it ends even if manifests are inconsistent.
    at = std::find_if(found.begin(), found.end(), [&](const FoundCheckpoint& each) {
      return child.parent != 0 && each.link.id == child.parent &&
             each.link.lineage == child.lineage && each.link.serial < child.serial;
    });
  }
  return line;
}

std::string newest_of(const std::vector<FoundCheckpoint>& found) {
  const auto best = std::max_element(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.link.serial < b.link.serial;
  });
  return best == found.end() ? "" : best->tag;
}

std::vector<std::size_t> to_prune(const std::vector<FoundCheckpoint>& found,
                                  const std::string& latest, std::uint32_t keep) {
  std::vector<std::size_t> line = line_of(found, latest);
  if (keep == 0 || line.size() <= keep) return {};
  line.erase(line.begin(), line.begin() + keep);
  std::reverse(line.begin(), line.end());
  return line;
}

std::uint64_t bytes_to_come(const CheckpointRoom& room) noexcept {
  constexpr std::uint64_t no_end = std::numeric_limits<std::uint64_t>::max();
  if (room.saves == 0 && room.keep == 0) return no_end;
  std::uint64_t at_once = no_end;  // checkpoints that exist at the same time
  if (room.saves != 0) at_once = room.present + room.saves;
  if (room.keep != 0) {
    at_once = std::min(at_once, std::max<std::uint64_t>(room.keep, room.present) + 1);
  }
  const std::uint64_t there = room.present + room.spares;
  if (at_once <= there) return 0;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(at_once - there, room.checkpoint_bytes, &bytes)) return no_end;
  return bytes;
}

bool holds_up_training(std::uint64_t checkpoint_bytes, double folder_rate,
                       double state_rate) noexcept {
  const bool is_long = static_cast<double>(checkpoint_bytes) > folder_rate;  // more than a second
  return folder_rate > 0 && is_long && folder_rate < 0.5 * state_rate;
}

}  // namespace artesian::zero3
