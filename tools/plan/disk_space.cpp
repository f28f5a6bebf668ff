#include "tools/plan/disk_space.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/units.h"
#include "tiering/superblock.h"

namespace artesian::tools {
namespace {

using Folder = DiskSpace::Folder;

std::uint64_t part_of(std::uint64_t bytes, double share) {
  if (share >= 1.0) return bytes;
  return static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) * share));
}

bool on_nvme(const zero3::OffloadConfig& offload) noexcept {
  return offload.device == zero3::Offload::Nvme;
}

/// Bytes of all ranks' swap files on each file system: one file per folder and rank, for all keys
/// that name the folder.
std::vector<std::uint64_t> taken(const DiskSpace& space, const zero3::Config& config,
                                 const zero3::Placement& placement) {
  std::map<std::string, const Folder*> files;
  std::vector<std::uint64_t> bytes(space.free.size(), 0);
  const auto add = [&](const std::vector<Folder>& folders, std::uint64_t payload) {
    for (const Folder& folder : folders) {
      const bool first = files.emplace(folder.path, &folder).second;
      bytes[folder.file_system] += part_of(payload, folder.share);
      bytes[folder.file_system] += first ? tiering::superblock_region_size : 0;
    }
  };
  if (on_nvme(config.zero.offload_param)) add(space.param, placement.nvme_param_bytes);
  if (on_nvme(config.zero.offload_optimizer)) add(space.optimizer, placement.nvme_optimizer_bytes);
  for (std::uint64_t& each : bytes) each *= space.ranks;
  return bytes;
}

/// The key of a folder on that file system, and the folder.
std::pair<std::string, std::string> place_on(const DiskSpace& space, const zero3::Config& config,
                                             std::size_t file_system) {
  const auto on_it = [&](const Folder& folder) { return folder.file_system == file_system; };
  if (on_nvme(config.zero.offload_optimizer)) {
    const auto found = std::find_if(space.optimizer.begin(), space.optimizer.end(), on_it);
    if (found != space.optimizer.end()) return {"offload_optimizer", found->path};
  }
  const auto found = std::find_if(space.param.begin(), space.param.end(), on_it);
  return {"offload_param", found == space.param.end() ? "" : found->path};
}

}  // namespace

std::uint64_t free_for(const DiskSpace& space, const zero3::Config& config) {
  std::vector<bool> used(space.free.size(), false);
  const auto use = [&](const zero3::OffloadConfig& offload, const std::vector<Folder>& folders) {
    if (!on_nvme(offload)) return;
    for (const Folder& folder : folders) used[folder.file_system] = true;
  };
  use(config.zero.offload_param, space.param);
  use(config.zero.offload_optimizer, space.optimizer);
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < used.size(); ++index)
    bytes += used[index] ? space.free[index] : 0;
  return bytes / space.ranks;
}

Result<void> check_space(const DiskSpace& space, const zero3::Config& config,
                         const zero3::Placement& placement) {
  const std::vector<std::uint64_t> needed = taken(space, config, placement);
  for (std::size_t index = 0; index < needed.size(); ++index) {
    if (needed[index] <= space.free[index]) continue;
    const auto [section, folder] = place_on(space, config, index);
    return make_error(
        ErrorCode::NoSpace,
        fmt::format(
            "zero_optimization.{}.nvme_path: got {} free in {}, allowed at least {} bytes ({}): {} "
            "bytes missing for the swap files; free some space, name a folder of another disk as "
            "well, or raise artesian.host_memory, which keeps state off the disk",
            section, format_size(space.free[index]), folder, needed[index],
            format_size(needed[index]), needed[index] - space.free[index]));
  }
  return {};
}

bool have_room(const DiskSpace& space, const zero3::Config& config,
               const zero3::Placement& placement, std::uint64_t shadows) {
  std::vector<std::uint64_t> left = space.free;
  const std::vector<std::uint64_t> before = taken(space, config, placement);
  for (std::size_t index = 0; index < left.size(); ++index) {
    left[index] -= std::min(left[index], before[index]);
  }
  for (const Folder& folder : space.optimizer) {  // files are reserved one after the other
    std::uint64_t& free = left[folder.file_system];
    const std::uint64_t more = part_of(shadows, folder.share) * space.ranks;
    if (more > free / 2) return false;
    free -= more;
  }
  return true;
}

}  // namespace artesian::tools
