// Doctor's lines about a folder for swap files: is it writable, which file system is it, does
// direct I/O work, which physical disk is below, how much is free. `root` is prepended to the paths
// of /proc and /sys, so that tests can simulate other machines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "base/result.h"
#include "tiering/disk/block_device.h"
#include "tiering/disk/mount.h"
#include "tiering/disk/profile.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

Finding examine_file_system(const tiering::Mount& mount);
/// A warning for each mount option that slows transfers down.
Findings examine_mount_options(const tiering::Mount& mount);
Finding examine_disks(const std::vector<tiering::BlockDevice>& disks, std::size_t numa_nodes);
/// A warning for each loop device between the folder and the disks.
Findings examine_loops(const std::vector<tiering::BlockDevice>& disks,
                       const std::string& root = "");
/// `bytes_whole`: size of the file system; 0 if unknown.
Finding examine_free_space(std::uint64_t bytes, std::uint64_t bytes_whole = 0);
/// Tries to make a machine profile's engine here, with its settings.
using TryEngine = std::function<Result<void>(aio::EngineKind, const aio::EngineOptions&)>;
Result<void> try_engine(aio::EngineKind kind, const aio::EngineOptions& options);
/// Reports the profile that `aio_bench tune` saved for the disk below `path`; an Io error with
/// ENOENT: there is none.
Finding examine_profile(const Result<tiering::MachineProfile>& profile, const std::string& path,
                        const TryEngine& attempt = try_engine);

/// One of the folders over which a run would divide its swap files.
struct StripedPath {
  std::string path;                // as the user typed it
  std::string folder;              // the same for two names of one folder, which need not exist
  std::vector<std::string> disks;  // names of the disks below the folder
};
StripedPath striped_path(const std::string& path);
/// Reports whether several folders are faster than one: two folders on one disk are not.
Finding examine_striping(const std::vector<StripedPath>& paths);

/// Returns all lines about one folder as the user typed it; a failure is the last line. Files
/// created for the tests are removed.
Findings examine_path(const std::string& path);
/// The same, but with a single failure if the file system has not answered within `seconds`. The
/// waiting thread is then left behind; the kernel cannot end a process with such a thread until the
/// file system answers.
Findings examine_path_in_time(const std::string& path, double seconds = 30);

}  // namespace artesian::tools
