#include "tiering/block_device.h"

#include <algorithm>
#include <filesystem>

#include "base/kernel_files.h"
#include "pinned/nodes.h"
#include "tiering/mount.h"

namespace artesian::tiering {
namespace {

namespace fs = std::filesystem;

fs::path canonical_of(const fs::path& path) {
  std::error_code failed;
  const fs::path found = fs::canonical(path, failed);
  return failed ? fs::path() : found;
}

bool is_folder(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed) && !failed;
}

std::optional<std::uint32_t> numa_node_of(fs::path device, const std::string& root) {
  const fs::path end = canonical_of(root + "/sys");
  for (; device.has_relative_path() && device != end; device = device.parent_path()) {
    const auto node = pinned::node_of_device(device);
    if (node.has_value()) return node;
  }
  return std::nullopt;
}

BlockDevice disk_at(const fs::path& device, const std::string& root) {
  BlockDevice disk{.name = device.filename().string(),
                   .model = first_line_of(device / "device/model")};
  const auto starts = [&](const char* prefix) { return disk.name.starts_with(prefix); };
  disk.nvme = starts("nvme");
  const std::string transport = first_line_of(device / "device/transport");
  disk.over_network = disk.nvme && !transport.empty() && transport != "pcie";
  disk.virtual_disk = starts("vd") || starts("xvd") || starts("loop") || starts("ram") ||
                      starts("zram") || starts("nbd");
  disk.rotational = !disk.virtual_disk && number_of(device / "queue/rotational").value_or(0) == 1;
  disk.numa_node = numa_node_of(device, root);
  return disk;
}

void collect(const fs::path& device, const std::string& root, int depth,
             std::vector<BlockDevice>& disks) {
  if (device.empty() || depth > 8) return;
  std::error_code ignored;
  if (fs::exists(device / "partition", ignored))
    return collect(device.parent_path(), root, depth, disks);
  const auto below = names_in(device / "slaves");
  for (const std::string& name : below) {
    collect(canonical_of(root + "/sys/class/block/" + name), root, depth + 1, disks);
  }
  const auto same = [&](const BlockDevice& disk) { return disk.name == device.filename(); };
  if (below.empty() && std::none_of(disks.begin(), disks.end(), same)) {
    disks.push_back(disk_at(device, root));
  }
}

}  // namespace

std::vector<BlockDevice> disks_below(std::uint32_t major, std::uint32_t minor,
                                     const std::string& root) {
  std::vector<BlockDevice> disks;
  const std::string number = std::to_string(major) + ":" + std::to_string(minor);
  if (major != 0) collect(canonical_of(root + "/sys/dev/block/" + number), root, 0, disks);
  return disks;
}

fs::path resolved_folder(const std::string& path) {
  std::error_code failed;
  const fs::path full = fs::absolute(path, failed);
  fs::path folder = fs::weakly_canonical(full, failed);
  if (failed) folder = full.lexically_normal();  // what is wrong shows when it is opened
  return folder.has_filename() ? folder : folder.parent_path();  // a trailing slash
}

Place place_of(const std::string& path) {
  const fs::path folder = resolved_folder(path);
  if (is_folder(folder)) return {.folder = folder.string()};
  std::error_code ignored;
  if (fs::exists(folder, ignored)) return {};
  if (!is_folder(folder.parent_path())) return {.missing = true};
  return {.folder = folder.parent_path().string(), .missing = true};
}

std::vector<BlockDevice> disks_of(const std::string& path, const std::string& root) {
  const Place place = place_of(path);
  if (place.folder.empty()) return {};
  const Mount mount = mount_of(place.folder, root);
  return disks_below(mount.major, mount.minor, root);
}

}  // namespace artesian::tiering
