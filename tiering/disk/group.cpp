#include "tiering/disk/group.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "tiering/disk/block_device.h"
#include "tiering/disk/mount.h"

namespace artesian::tiering {

std::vector<std::uint64_t> groups_by_disk(const std::vector<std::vector<std::string>>& disks) {
  std::vector<std::uint64_t> groups(disks.size());
  std::iota(groups.begin(), groups.end(), 0);
  for (std::size_t second = 1; second < disks.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const auto& names = disks[first];
      const bool shared = std::find_first_of(names.begin(), names.end(), disks[second].begin(),
                                             disks[second].end()) != names.end();
      const auto [low, high] = std::minmax({groups[first], groups[second]});
      if (shared) std::replace(groups.begin(), groups.end(), high, low);
    }
  }
  for (std::size_t index = 0; index < groups.size(); ++index) {
    ARTESIAN_CHECK(groups[index] <= index, index);  // named after the first of them
    ARTESIAN_CHECK(groups[groups[index]] == groups[index], index, groups[index]);
  }
  return groups;
}

std::vector<std::string> disk_names_of(const std::string& path, const std::string& root) {
  const NearestFolder nearest = nearest_folder(path);
  if (nearest.folder.empty()) return {};
  const Mount mount = mount_of(nearest.folder, root);
  std::vector<std::string> names;
  for (const BlockDevice& disk : disks_below(mount.major, mount.minor, root)) {
    names.push_back(disk.name);
  }
  if (names.empty()) names.push_back(mount.source + " at " + mount.point);
  return names;
}

}  // namespace artesian::tiering
