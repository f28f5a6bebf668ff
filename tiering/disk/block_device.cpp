#include "tiering/disk/block_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/kernel_files.h"
#include "pinned/nodes.h"
#include "tiering/disk/mount.h"

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
  ARTESIAN_CHECK(!disk.name.empty());
  disk.nvme = starts("nvme");
  const std::string transport = first_line_of(device / "device/transport");
  disk.over_network = disk.nvme && !transport.empty() && transport != "pcie";
  disk.virtual_disk = starts("vd") || starts("xvd") || starts("loop") || starts("ram") ||
                      starts("zram") || starts("nbd");
  disk.rotational = !disk.virtual_disk && number_of(device / "queue/rotational").value_or(0) == 1;
  disk.numa_node = numa_node_of(device, root);
  return disk;
}

/// Walks from one device down to the disks.
class Descent {
 public:
  explicit Descent(const std::string& root) : root_(root) {}

  void enter(const fs::path& device, int depth) {
    if (device.empty() || depth > 8) return;
    std::error_code ignored;
    if (fs::exists(device / "partition", ignored)) return enter(device.parent_path(), depth);
    const auto below = names_in(device / "slaves");
    for (const std::string& name : below) enter(named(name), depth + 1);
    if (!below.empty()) return;
    const fs::path backing = behind_loop(device);
    if (backing.empty()) return add(device);
    const std::string before = std::exchange(loop_, device.filename().string());
    enter(backing, depth + 1);
    loop_ = before;
  }
  std::vector<BlockDevice> take() { return std::move(disks_); }

 private:
  fs::path named(const std::string& name) const {
    return canonical_of(root_ + "/sys/class/block/" + name);
  }
  fs::path numbered(const Mount& mount) const {
    if (mount.major == 0) return {};
    return canonical_of(fmt::format("{}/sys/dev/block/{}:{}", root_, mount.major, mount.minor));
  }
  /// The device that a loop device's bytes are on: of the file system of its file, or the device
  /// that it was set up over. Empty where this is no loop device, or nothing is known.
  fs::path behind_loop(const fs::path& device) const {
    const std::string file = first_line_of(device / "loop/backing_file");
    if (!file.starts_with("/")) return {};
    const fs::path over = file.starts_with("/dev/") ? named(fs::path(file).filename()) : fs::path();
    return over.empty() ? numbered(mount_of(file, root_)) : over;
  }
  void add(const fs::path& device) {
    const auto same = [&](const BlockDevice& disk) { return disk.name == device.filename(); };
    if (std::any_of(disks_.begin(), disks_.end(), same)) return;
    disks_.push_back(disk_at(device, root_));
    disks_.back().loop = loop_;
  }

  const std::string& root_;
  std::string loop_;
  std::vector<BlockDevice> disks_;
};

}  // namespace

std::vector<BlockDevice> disks_below(std::uint32_t major, std::uint32_t minor,
                                     const std::string& root) {
  const std::string number = fmt::format("{}:{}", major, minor);
  Descent descent(root);
  if (major != 0) descent.enter(canonical_of(root + "/sys/dev/block/" + number), 0);
  return descent.take();
}

fs::path resolved_folder(const std::string& path) {
  std::error_code failed;
  const fs::path full = fs::absolute(path, failed);
  fs::path folder = fs::weakly_canonical(full, failed);
  if (failed) folder = full.lexically_normal();                  // opening it reports the fault
  return folder.has_filename() ? folder : folder.parent_path();  // a trailing slash
}

NearestFolder nearest_folder(const std::string& path) {
  const fs::path folder = resolved_folder(path);
  if (is_folder(folder)) return {.folder = folder.string()};
  std::error_code ignored;
  if (fs::exists(folder, ignored)) return {};
  if (!is_folder(folder.parent_path())) return {.missing = true};
  return {.folder = folder.parent_path().string(), .missing = true};
}

std::vector<BlockDevice> disks_of(const std::string& path, const std::string& root) {
  const NearestFolder nearest = nearest_folder(path);
  if (nearest.folder.empty()) return {};
  const Mount mount = mount_of(nearest.folder, root);
  return disks_below(mount.major, mount.minor, root);
}

}  // namespace artesian::tiering
