#include "zero3/step/swap_paths.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "tiering/disk/block_device.h"
#include "tiering/disk/group.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t stripe_bytes_max = 8 << 20;

class Collector {
 public:
  /// The volume with these folders, new or existing. Each folder may be named once: two swap files
  /// in one folder would lock each other out.
  Result<std::uint32_t> add(const std::vector<std::string>& folders) {
    std::vector<std::uint32_t> volume;
    for (const std::string& folder : folders) {
      const std::uint32_t index = index_of(folder);
      if (std::find(volume.begin(), volume.end(), index) != volume.end()) {
        Error error =
            make_error(ErrorCode::Invalid, "got \"" + folder + "\" twice (also as \"" +
                                               paths.directories[index] +
                                               "\"), allowed each folder once; remove one");
        error.file = paths.directories[index];
        return error;
      }
      volume.push_back(index);
    }
    std::sort(volume.begin(), volume.end());
    const auto found = std::find(paths.volumes.begin(), paths.volumes.end(), volume);
    const auto place = static_cast<std::uint32_t>(found - paths.volumes.begin());
    if (found == paths.volumes.end() && !volume.empty()) paths.volumes.push_back(volume);
    return volume.empty() ? 0 : place;
  }

  SwapPaths paths;

 private:
  std::uint32_t index_of(const std::string& folder) {
    const auto full = tiering::resolved_folder(folder);
    const auto found = std::find(resolved_.begin(), resolved_.end(), full);
    const auto index = static_cast<std::uint32_t>(found - resolved_.begin());
    if (found == resolved_.end()) {
      resolved_.push_back(full);
      paths.directories.push_back(folder);
    }
    return index;
  }

  std::vector<std::filesystem::path> resolved_;
};

/// Speeds at the block sizes in use; empty unless `aio_bench tune` has measured all of them.
std::vector<tiering::PathDisk> saved_disks(const std::vector<std::string>& directories,
                                           const std::vector<SavedProfile>& profiles,
                                           const std::vector<PathIo>& io) {
  ARTESIAN_CHECK(directories.size() == io.size(), directories.size(), io.size());
  ARTESIAN_CHECK(directories.size() == profiles.size(), directories.size(), profiles.size());
  std::vector<tiering::PathDisk> disks;
  // Disks below the folders, as profiles are per file system.
  std::vector<std::vector<std::string>> names;
  for (std::size_t path = 0; path < profiles.size(); ++path) {
    const auto& [file, profile, fault] = profiles[path];
    if (!profile.has_value()) return {};
    const tiering::DiskSpeed speed = profile->speed(io[path].options.block_size);
    if (speed.read_bytes_per_s <= 0 || speed.write_bytes_per_s <= 0) return {};
    disks.push_back({.speed = speed});
    names.push_back(tiering::disk_names_of(directories[path]));
    names.back().push_back(file);
  }
  const std::vector<std::uint64_t> groups = tiering::groups_by_disk(names);
  for (std::size_t path = 0; path < disks.size(); ++path) disks[path].device = groups[path];
  return disks;
}

}  // namespace

Result<SwapPaths> resolve_swap_paths(const std::vector<std::string>& param,
                                     const std::vector<std::string>& optimizer) {
  Collector collector;
  ARTESIAN_TRY(param_volume, collector.add(param));
  ARTESIAN_TRY(optimizer_volume, collector.add(optimizer));
  collector.paths.param_volume = param_volume;
  collector.paths.optimizer_volume = optimizer_volume;
  return std::move(collector.paths);
}

Result<SwapPaths> swap_paths_of(const Config& config, const std::vector<tiering::PathDisk>& disks) {
  const auto folders = [](const OffloadConfig& offload) {
    return offload.device == Offload::Nvme ? offload.nvme_paths : std::vector<std::string>();
  };
  ARTESIAN_TRY(paths, resolve_swap_paths(folders(config.zero.offload_param),
                                         folders(config.zero.offload_optimizer)));
  if (!disks.empty() && disks.size() != paths.directories.size()) {
    return make_error(
        ErrorCode::Invalid,
        fmt::format("path_disks: got {}, allowed none or {}, one for each folder of nvme_path",
                    disks.size(), paths.directories.size()));
  }
  paths.disks = disks;
  const bool asks_for_disks = paths.directories.size() > 1 && disks.empty();
  std::vector<SavedProfile> profiles;
  if (asks_for_disks || config.aio_from_profile) profiles = saved_profiles(paths.directories);
  PathIoChoice chosen = choose_path_io(config, paths.directories, profiles);
  paths.io = std::move(chosen.paths);
  paths.notes = std::move(chosen.notes);
  // The most bytes of one kernel request: stripes are not smaller, so that no request is cut in
  // two.
  std::uint64_t block_size = paths.io.empty() ? config.aio.block_size : 0;
  for (const PathIo& io : paths.io) block_size = std::max(block_size, io.options.block_size);
  paths.stripe_bytes = std::min(block_size, stripe_bytes_max);
  if (asks_for_disks) paths.disks = saved_disks(paths.directories, profiles, paths.io);
  return paths;
}

SwapPathsUse& SwapPathsUse::operator+=(const SwapPathsUse& more) {
  if (paths.empty()) return *this = more;
  ARTESIAN_CHECK(more.paths.empty() || more.paths.size() == paths.size(), more.paths.size());
  for (std::size_t path = 0; path < more.paths.size(); ++path) {
    paths[path].bytes_read += more.paths[path].bytes_read;
    paths[path].bytes_written += more.paths[path].bytes_written;
  }
  return *this;
}

SwapPathsUse SwapPathsUse::operator-(const SwapPathsUse& before) const {
  ARTESIAN_CHECK(before.paths.empty() || before.paths.size() == paths.size(), before.paths.size());
  SwapPathsUse since = *this;
  for (std::size_t path = 0; path < before.paths.size(); ++path) {
    since.paths[path].bytes_read -= before.paths[path].bytes_read;
    since.paths[path].bytes_written -= before.paths[path].bytes_written;
  }
  return since;
}

}  // namespace artesian::zero3
