#include "tools/doctor/disk.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <iomanip>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "base/file_system.h"
#include "base/kernel_files.h"
#include "base/units.h"
#include "tiering/disk/group.h"
#include "tools/doctor/device.h"
#include "tools/doctor/limits.h"
#include "tools/doctor/machine.h"

namespace artesian::tools {
namespace {

using tiering::BlockDevice;
using tiering::FileSystemKind;
using tiering::Mount;
using tiering::NearestFolder;

constexpr std::uint64_t free_least = std::uint64_t{1} << 30;
constexpr std::uint64_t full_from = 20;  // warns if less than one part in this many is free
constexpr int bytes_per_parameter = 16;  // 2 stored, 12 of state, 2 of spilled gradient

std::string describe(const std::vector<BlockDevice>& disks) {
  std::string text;
  for (const BlockDevice& disk : disks) {
    text += (text.empty() ? "" : ", ") + disk.name;
    if (!disk.model.empty()) text += " (" + disk.model + ")";
    if (disk.numa_node.has_value()) text += fmt::format(" on NUMA node {}", *disk.numa_node);
  }
  return text;
}

struct Probe {
  Level level = Level::Ok;
  std::string direct;        // the alignment, or why direct I/O does not work
  std::string refused = {};  // why nothing can be written at all
};

/// Writes one block and reads it back.
Result<std::uint64_t> try_file(const std::string& name, Direct direct) {
  FileSystem& files = system_files();
  auto file = files.open(name, {.create = Create::Exclusive, .direct = direct});
  if (!file.has_value()) return std::move(file).error();
  constexpr std::size_t length = 4096;
  alignas(4096) std::array<char, length> source;  // not static, as a hanging try may still use it
  alignas(4096) std::array<char, length> target;
  source.fill('a');
  target.fill(0);
  ARTESIAN_TRY_VOID((*file)->write_at(source.data(), length, 0));
  ARTESIAN_TRY_VOID((*file)->sync());
  ARTESIAN_TRY_VOID((*file)->read_at(target.data(), length, 0));
  if (source != target) {
    return make_error(ErrorCode::Corrupt, "what was read back is not what was written");
  }
  return (*file)->alignment();
}

Probe probe(const std::string& folder) {
  const std::string name = fmt::format("{}/.artesian-doctor-{}", folder, getpid());
  auto direct = try_file(name, Direct::Required);
  (void)system_files().remove(name).has_value();  // it may not exist
  if (direct.has_value()) return {.direct = std::to_string(*direct)};
  auto buffered = try_file(name, Direct::Never);
  (void)system_files().remove(name).has_value();
  if (buffered.has_value()) return {.level = Level::Warn, .direct = direct.error().to_string()};
  return {.level = Level::Fail, .direct = {}, .refused = buffered.error().to_string()};
}

Finding examine_direct(const Probe& probe) {
  Finding finding{.name = "direct_io", .level = probe.level};
  if (probe.level == Level::Ok) {
    finding.value = "works, aligned to " + probe.direct + " bytes";
    finding.meaning = "transfers bypass the page cache";
    return finding;
  }
  finding.value = "refused: " + probe.direct;
  finding.meaning = "every byte is copied through the page cache, which takes memory and CPU time";
  finding.fix = "a folder on a local file system, such as ext4 or xfs on an NVMe disk";
  return finding;
}

/// "3.21 GB/s read, 2.1 written, 2.4 mixed", at the block size nearest to that of the settings.
std::string describe_rates(const tiering::MachineProfile& profile) {
  const std::uint64_t block = profile.best->block_size;
  const auto far = [&](std::uint64_t size) { return size > block ? size - block : block - size; };
  std::string text;
  for (const auto& [share, name] : {std::pair(1.0, "read"), {0.0, "written"}, {0.5, "mixed"}}) {
    const tiering::MachineProfile::Rate* nearest = nullptr;
    for (const auto& rate : profile.rates) {
      if (rate.read_share != share) continue;
      if (nearest == nullptr || far(rate.block_size) < far(nearest->block_size)) nearest = &rate;
    }
    if (nearest == nullptr) continue;
    std::ostringstream number;
    number << std::setprecision(3) << nearest->gb_per_s;
    text += (text.empty() ? "" : ", ") + number.str() + (text.empty() ? " GB/s " : " ") + name;
  }
  return text;
}

std::optional<aio::EngineKind> engine_named(const std::string& name) {
  using aio::EngineKind;
  for (const EngineKind kind : {EngineKind::IoUring, EngineKind::Libaio, EngineKind::Threads}) {
    if (name == aio::engine_kind_name(kind)) return kind;
  }
  return std::nullopt;
}

/// The disks, and the layers between them and this process.
Findings examine_below(const Mount& mount, std::uint64_t block_size) {
  Findings findings;
  const auto append = [&](Findings more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()),
                    std::make_move_iterator(more.end()));
  };
  std::size_t nodes = 0;
  for (const auto& name : names_in("/sys/devices/system/node")) nodes += name.starts_with("node");
  const auto disks = tiering::disks_below(mount.major, mount.minor);
  const bool local = examine_file_system(mount).level == Level::Ok;
  // Below a network's or a container's file system no disk is visible, which that file system's own
  // line reports.
  if (!disks.empty() || local) findings.push_back(examine_disks(disks, nodes));
  append(examine_loops(disks));
  append(examine_io_limits(disks));
  for (const BlockDevice& disk : disks) append(examine_device(disk, block_size));
  return findings;
}

/// Reports a path that is not a folder, and cannot become one.
Finding examine_no_place(const std::string& path, bool missing) {
  Finding finding{.name = "path", .level = Level::Fail, .value = "not a folder"};
  finding.meaning = "no swap file can be made there";
  finding.fix = "name a folder";
  if (!missing) return finding;
  std::error_code failed;
  static_cast<void>(std::filesystem::status(path, failed));
  const bool hidden = failed == std::errc::permission_denied;
  finding.value =
      hidden ? "cannot be looked at: " + failed.message() : "neither it nor its parent exists";
  finding.fix =
      hidden ? "search permission (x) for this user on all folders above it" : "mkdir -p " + path;
  return finding;
}

/// Reports a profile with settings, which are only useful if its engine is available.
Finding examine_best(const tiering::MachineProfile& profile, Finding finding,
                     const std::string& command, const TryEngine& attempt) {
  const aio::EngineOptions& best = *profile.best;
  const std::string rates = describe_rates(profile);
  finding.value = tiering::describe(best) + ", " + profile.engine + "; " +
                  (rates.empty() ? "" : rates + ", ") + "measured " + profile.measured_at;
  const auto kind = engine_named(profile.engine);
  if (!kind.has_value()) {
    finding.level = Level::Warn;
    finding.meaning = "an engine that is not known here: a config gets the defaults";
    finding.fix = command;
    return finding;
  }
  const Result<void> made = attempt(*kind, best);
  if (made.has_value()) {
    finding.meaning = "taken by every config without an aio section";
    if (best.polling != aio::Polling::None) {
      finding.meaning += std::string(" that sets artesian.polling ") + polling_name(best.polling);
    }
    return finding;
  }
  finding.level = Level::Warn;
  finding.meaning = "a config without an aio section takes them with another engine, as " +
                    profile.engine + " cannot be made here: " + made.error().to_string();
  finding.fix = fix_of_engine(*kind, made.error()) + "; or measure what can: " + command;
  return finding;
}

}  // namespace

Finding examine_file_system(const Mount& mount) {
  Finding finding{.name = "file_system", .value = mount.type + " at " + mount.point};
  if (mount.type.empty()) finding.value = "not known";
  const FileSystemKind kind = tiering::file_system_kind(mount.type);
  finding.level = kind == FileSystemKind::Local ? Level::Ok : Level::Warn;
  finding.meaning = tiering::file_system_meaning(kind);
  finding.fix = tiering::file_system_fix(kind);
  return finding;
}

Findings examine_mount_options(const Mount& mount) {
  struct Known {
    const char* option;  // option, with its value after "="; ending in "=" if any value counts
    const char* type;    // of this file system; empty: of any
    const char* meaning;
    const char* instead;
    bool remounts;  // can be changed by a remount
  };
  static constexpr const char* copied = "transfers are copies by the CPU, one at a time";
  static constexpr const char* compressed =
      "the CPU compresses what is written, and direct I/O goes through the page cache";
  static constexpr Known known[] = {
      {"sync", "", "each write waits for the disk, and for the file system's log", "async", true},
      {"data=journal", "ext4", "every byte is written twice, through the page cache",
       "data=ordered", false},
      {"dax=always", "", copied, "dax=never", false},
      {"dax", "", copied, "dax=never", false},
      {"compress", "btrfs", compressed, "compress=no", true},
      {"compress-force", "btrfs", compressed, "compress=no", true},
      {"autodefrag", "btrfs", "what is rewritten is written once more", "noautodefrag", true},
  };
  Findings findings;
  std::set<std::string> seen;
  for (const std::string& option : mount.options) {
    for (const Known& each : known) {
      const std::string bare = option.substr(0, option.find('='));
      if (option != each.option && (bare != each.option || bare == "dax")) continue;
      if (option == "compress=no" || option == "compress=none") continue;
      if (*each.type != '\0' && mount.type != each.type) continue;
      if (!seen.insert(option).second) continue;
      findings.push_back({.name = "mount_option",
                          .level = Level::Warn,
                          .value = option + " of " + mount.point,
                          .meaning = each.meaning,
                          .fix = (each.remounts ? "mount -o remount," : "umount, then mount -o ") +
                                 std::string(each.instead) + " " + mount.point +
                                 "; for good, in /etc/fstab"});
    }
  }
  return findings;
}

Finding examine_disks(const std::vector<BlockDevice>& disks, std::size_t numa_nodes) {
  Finding finding{.name = "disk", .value = describe(disks)};
  const auto any = [&](auto is) { return std::any_of(disks.begin(), disks.end(), is); };
  finding.level = Level::Warn;
  finding.fix = "a folder on a local NVMe disk, if there is one: ls /dev/nvme*";
  if (disks.empty()) {
    finding.value = "no block device can be seen below";
    finding.meaning = "whether this is an NVMe disk is not known; aio_bench run measures it";
  } else if (any([](const BlockDevice& disk) { return disk.rotational; })) {
    finding.meaning = "it rotates: ten to a hundred times slower than NVMe";
  } else if (any([](const BlockDevice& disk) { return disk.over_network; })) {
    finding.meaning = "NVMe over a network: as fast as the network is";
  } else if (any([](const BlockDevice& disk) { return disk.virtual_disk; })) {
    finding.meaning =
        "a virtual disk: what is really below cannot be seen; aio_bench run measures it";
  } else if (!std::all_of(disks.begin(), disks.end(),
                          [](const BlockDevice& d) { return d.nvme; })) {
    finding.meaning = "not NVMe: SATA and SAS end at about 0.5 to 2 GB/s";
  } else {
    finding.level = Level::Ok;
    finding.meaning = "NVMe";
    finding.fix.clear();
    const auto node = disks.front().numa_node;
    if (numa_nodes > 1 && node.has_value()) {
      finding.meaning +=
          fmt::format("; nearest to the cores of its node: numactl --cpunodebind={}", *node);
    }
  }
  return finding;
}

Findings examine_loops(const std::vector<BlockDevice>& disks, const std::string& root) {
  Findings findings;
  std::set<std::string> names;
  for (const BlockDevice& disk : disks) {
    // A loop device with unknown backing counts as its own disk.
    const std::string name = disk.name.starts_with("loop") ? disk.name : disk.loop;
    if (name.empty() || !names.insert(name).second) continue;
    const std::string loop = root + "/sys/block/" + name + "/loop/";
    const std::string file = first_line_of(loop + "backing_file");
    const bool buffered = number_of(loop + "dio").value_or(0) == 0;
    findings.push_back(
        {.name = "loop_device",
         .level = Level::Warn,
         .value = name + (file.empty() ? "" : ", the file " + file) +
                  (buffered ? ", through the page cache" : ""),
         .meaning =
             "every transfer goes through two file systems and a thread of the kernel" +
             std::string(buffered ? ", and direct I/O fills the page cache all the same" : ""),
         .fix = "a folder on the file system that holds that file" +
                std::string(buffered ? "; or losetup --direct-io=on /dev/" + name : "")});
  }
  return findings;
}

Finding examine_free_space(std::uint64_t bytes, std::uint64_t bytes_whole) {
  Finding finding{.name = "free_space", .value = format_size(bytes)};
  std::ostringstream billions;
  billions.precision(3);
  billions << static_cast<double>(bytes) / bytes_per_parameter / 1e9;
  finding.meaning = fmt::format("holds {} bytes for each of {} billion parameters",
                                bytes_per_parameter, billions.str());
  if (bytes_whole > 0) finding.value += " of " + format_size(bytes_whole);
  const bool nearly_full = bytes < bytes_whole / full_from;
  if (bytes >= free_least && !nearly_full) return finding;
  if (nearly_full) finding.meaning += "; nearly full: files lie in pieces, and SSDs write slowly";
  finding.level = bytes < (1 << 20) ? Level::Fail : Level::Warn;
  finding.fix = "free some space, or another disk";
  return finding;
}

Result<void> try_engine(aio::EngineKind kind, const aio::EngineOptions& options) {
  const auto engine = aio::make_engine(kind, options);
  return engine.has_value() ? Result<void>() : Result<void>(engine.error());
}

Finding examine_profile(const Result<tiering::MachineProfile>& profile, const std::string& path,
                        const TryEngine& attempt) {
  Finding finding{.name = "io_settings"};
  const std::string command = "aio_bench tune --path " + path;
  const std::string measured = profile.has_value() ? "measured " + profile->measured_at : "";
  if (profile.has_value() && profile->best.has_value()) {
    return examine_best(*profile, std::move(finding), command, attempt);
  }
  const bool missing = !profile.has_value() && profile.error().system_error == ENOENT;
  if (profile.has_value() || missing) {
    finding.value = missing ? "never measured" : measured + ", without settings";
    finding.meaning = "a config without an aio section gets the defaults; " + command +
                      " finds what is best for this disk";
    return finding;
  }
  finding.level = Level::Warn;
  finding.value = profile.error().to_string();
  finding.meaning = "a config without an aio section gets the defaults";
  finding.fix = command;
  return finding;
}

StripedPath striped_path(const std::string& path) {
  return {.path = path,
          .folder = tiering::resolved_folder(path).string(),
          .disks = tiering::disk_names_of(path)};
}

Finding examine_striping(const std::vector<StripedPath>& paths) {
  Finding finding{.name = "striping", .value = fmt::format("{} folders", paths.size())};
  finding.meaning = "no two on one disk: bytes are divided by the speed of each";
  for (std::size_t second = 1; second < paths.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const StripedPath& one = paths[first];
      const StripedPath& other = paths[second];
      if (one.folder == other.folder) {
        finding.level = Level::Fail;
        finding.value = one.path + " and " + other.path + " are one folder";
        finding.meaning = "no run starts with both in its nvme_path";
        finding.fix = "name it once";
        return finding;
      }
      const auto shared = std::find_first_of(one.disks.begin(), one.disks.end(),
                                             other.disks.begin(), other.disks.end());
      if (shared == one.disks.end() || finding.level != Level::Ok) continue;
      finding.level = Level::Warn;
      finding.value = one.path + " and " + other.path + " are on one disk, " + *shared;
      finding.meaning = "they share its speed: both together are no faster than one";
      finding.fix = "folders on different disks, or one of the two";
    }
  }
  return finding;
}

Findings examine_path(const std::string& path) {
  Findings findings;
  const auto add = [&](Finding finding) {
    finding.subject = path;
    findings.push_back(std::move(finding));
  };
  const NearestFolder nearest = tiering::nearest_folder(path);
  if (nearest.folder.empty()) {
    add(examine_no_place(path, nearest.missing));
    return findings;
  }
  const Probe found = probe(nearest.folder);
  if (found.level == Level::Fail) {
    add({.name = "path",
         .level = Level::Fail,
         .value = found.refused,
         .meaning = "no swap file can be made there",
         .fix = "write permission for this user, free space, or another folder"});
    return findings;
  }
  add({.name = "path",
       .value = nearest.missing ? "missing; its parent is writable" : "writable",
       .meaning = nearest.missing ? "a run creates it" : "swap files can be made there"});
  const auto profile_path = tiering::machine_profile_path(nearest.folder);
  const Result<tiering::MachineProfile> profile =
      profile_path.has_value() ? tiering::load_machine_profile(*profile_path)
                               : Result<tiering::MachineProfile>(profile_path.error());
  const Mount mount = tiering::mount_of(nearest.folder);
  add(examine_file_system(mount));
  for (Finding& option : examine_mount_options(mount)) add(std::move(option));
  const FileSystemKind kind = tiering::file_system_kind(mount.type);
  const bool memory = kind == FileSystemKind::Memory;  // one line covers everything for these
  const bool tuned = profile.has_value() && profile->best.has_value();
  if (!memory) {
    const aio::EngineOptions options = tuned ? *profile->best : aio::EngineOptions();
    add(examine_direct(found));
    for (Finding& each : examine_below(mount, options.block_size)) add(std::move(each));
  }
  auto free_bytes = system_files().free_bytes(nearest.folder);
  std::error_code failed;
  const auto space = std::filesystem::space(nearest.folder, failed);
  if (free_bytes.has_value()) {
    add(examine_free_space(*free_bytes, failed ? 0 : space.capacity));
  }
  if (profile_path.has_value() && !memory) add(examine_profile(profile, path));
  return findings;
}

Findings examine_path_in_time(const std::string& path, double seconds) {
  std::promise<Findings> promise;
  auto answer = promise.get_future();
  std::thread([path, promise = std::move(promise)]() mutable {
    promise.set_value(examine_path(path));
  }).detach();
  if (answer.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready) {
    return answer.get();
  }
  std::ostringstream value;
  value << "no answer from its file system within " << seconds << " s";
  return {{.name = "path",
           .level = Level::Fail,
           .value = value.str(),
           .meaning = "no swap file can be made there, and a run that tries hangs",
           .fix = "dmesg tells of the disk or server below; else another folder",
           .subject = path}};
}

}  // namespace artesian::tools
