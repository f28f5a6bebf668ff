#include "tools/plan/disk.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "tiering/disk/block_device.h"
#include "tiering/disk/group.h"
#include "tiering/swap_directory.h"
#include "zero3/step/path_io.h"

namespace artesian::tools {
namespace {

class Finder {
 public:
  Finder(const zero3::Config& config, const SwapVolumesOptions& options)
      : config_(config), options_(options) {}

  /// With the speeds measured by `aio_bench tune`, or assumed ones unless all were measured.
  SwapVolume find(const std::vector<std::string>& folders) {
    SwapVolume volume{.folders = folders, .disks = {}, .measured_at = {}, .notes = {}};
    std::vector<zero3::SavedProfile> saved(folders.size());
    if (options_.here) saved = zero3::saved_profiles(folders);
    zero3::PathIoChoice io = zero3::choose_path_io(config_, folders, saved);
    volume.notes = std::move(io.notes);
    std::size_t measured = 0;
    for (std::size_t path = 0; path < folders.size(); ++path) {
      volume.disks.push_back({.speed = options_.assumed, .device = names_.size()});
      names_.push_back(names_of(folders[path], saved[path].file));
      const auto& profile = saved[path].profile;
      if (!profile.has_value()) continue;
      const tiering::DiskSpeed speed = profile->speed(io.paths[path].options.block_size);
      if (speed.read_bytes_per_s <= 0 || speed.write_bytes_per_s <= 0) continue;
      volume.disks.back().speed = speed;
      volume.duplex = volume.duplex && profile->duplex;
      if (++measured == 1) volume.measured_at = profile->measured_at;
    }
    if (measured == folders.size()) return volume;
    for (auto& disk : volume.disks) disk.speed = options_.assumed;
    volume.measured_at.clear();
    return volume;
  }

  /// Called when all are found: folders that share a disk get the same number.
  void join(SwapVolume& volume) const {
    const std::vector<std::uint64_t> groups = tiering::groups_by_disk(names_);
    for (auto& disk : volume.disks) disk.device = groups[disk.device];
  }

 private:
  std::vector<std::string> names_of(const std::string& folder, const std::string& profile) const {
    auto names = options_.here ? tiering::disk_names_of(folder) : std::vector<std::string>();
    names.push_back(profile.empty() ? folder : profile);
    return names;
  }

  const zero3::Config& config_;
  const SwapVolumesOptions& options_;
  std::vector<std::vector<std::string>> names_;  // disks below each folder
};

std::set<std::string> resolved(const std::vector<std::string>& folders) {
  std::set<std::string> all;
  for (const std::string& folder : folders) all.insert(tiering::resolved_folder(folder).string());
  return all;
}

bool share_a_disk(const SwapVolume& one, const SwapVolume& other) {
  return std::any_of(one.disks.begin(), one.disks.end(), [&](const tiering::PathDisk& disk) {
    return std::any_of(
        other.disks.begin(), other.disks.end(),
        [&](const tiering::PathDisk& second) { return second.device == disk.device; });
  });
}

class SpaceFinder {
 public:
  explicit SpaceFinder(FileSystem& files) : files_(files) {}

  /// Empty if one of them cannot be located.
  std::vector<DiskSpace::Folder> find(const SwapVolume& volume) {
    std::vector<DiskSpace::Folder> folders;
    const auto weights = tiering::stripe_weights(volume.disks);
    const double whole = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t path = 0; path < weights.size(); ++path) {
      const std::string folder = tiering::resolved_folder(volume.folders[path]).string();
      const tiering::NearestFolder nearest = tiering::nearest_folder(folder);
      if (nearest.folder.empty()) return {};
      const auto index = file_system_of(nearest.folder);
      if (!index.has_value()) return {};
      const bool first = seen_.insert(folder).second;
      if (first && !nearest.missing) {
        free[*index] += tiering::stale_swap_bytes(nearest.folder, files_);
      }
      folders.push_back({folder, *index, weights[path] / whole});
    }
    return folders;
  }

  std::vector<std::uint64_t> free;  // free bytes of each file system

 private:
  std::optional<std::size_t> file_system_of(const std::string& folder) {
    const auto status = files_.status(folder);
    if (!status.has_value()) return std::nullopt;
    const auto known = indexes_.find(status->device);
    if (known != indexes_.end()) return known->second;
    const auto bytes = files_.free_bytes(folder);
    if (!bytes.has_value()) return std::nullopt;
    free.push_back(*bytes);
    return indexes_[status->device] = free.size() - 1;
  }

  FileSystem& files_;
  std::map<std::uint64_t, std::size_t> indexes_;  // by device number
  std::set<std::string> seen_;
};

}  // namespace

SwapVolumes swap_volumes(const zero3::Config& config, const SwapVolumesOptions& options) {
  const std::vector<std::string>& param = config.zero.offload_param.nvme_paths;
  const std::vector<std::string>& optimizer = config.zero.offload_optimizer.nvme_paths;
  Finder finder(config, options);
  SwapVolumes volumes;
  volumes.optimizer = finder.find(optimizer.empty() ? param : optimizer);
  volumes.same = param.empty() || optimizer.empty() || resolved(param) == resolved(optimizer);
  volumes.param = volumes.same ? volumes.optimizer : finder.find(param);
  finder.join(volumes.param);
  finder.join(volumes.optimizer);
  volumes.apart = !volumes.same && !share_a_disk(volumes.param, volumes.optimizer);
  return volumes;
}

DiskSpace free_space(const SwapVolumes& volumes, FileSystem& files) {
  SpaceFinder finder(files);
  DiskSpace space;
  space.param = finder.find(volumes.param);
  space.optimizer = finder.find(volumes.optimizer);
  space.free = std::move(finder.free);
  return space;
}

}  // namespace artesian::tools
