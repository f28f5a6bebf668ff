// Doctor's lines about a folder that is to hold swap files: can we write there, what file system is
// it, does direct I/O work, which disk is really below, how much is free. `root` is put before the
// paths of /proc and /sys, so that tests can show other machines.
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
/// A warning for each mount option that makes transfers slow.
Findings examine_mount_options(const tiering::Mount& mount);
Finding examine_disks(const std::vector<tiering::BlockDevice>& disks, std::size_t numa_nodes);
/// A warning for each loop device that stands before the disks.
Findings examine_loops(const std::vector<tiering::BlockDevice>& disks,
                       const std::string& root = "");
/// `bytes_whole`: of the file system; 0 if that is not known.
Finding examine_free_space(std::uint64_t bytes, std::uint64_t bytes_whole = 0);
/// Tries whether the engine of a machine profile can be made here, with its settings.
using TryEngine = std::function<Result<void>(aio::EngineKind, const aio::EngineOptions&)>;
Result<void> try_engine(aio::EngineKind kind, const aio::EngineOptions& options);
/// Reports what `aio_bench tune` kept of the disk below `path`; an Io error with ENOENT: nothing.
Finding examine_profile(const Result<tiering::MachineProfile>& profile, const std::string& path,
                        const TryEngine& attempt = try_engine);

/// A folder among those over which a run is to divide its swap.
struct StripedPath {
  std::string path;                // as typed
  std::string folder;              // equal for two names of one folder; it need not exist
  std::vector<std::string> disks;  // names of the disks below the folder
};
StripedPath striped_path(const std::string& path);
/// Reports whether several folders are faster than one: two on one disk are not.
Finding examine_striping(const std::vector<StripedPath>& paths);

/// Returns all lines about one folder as the user typed it; a failure ends the list. Files created
/// for the tests are removed.
Findings examine_path(const std::string& path);
/// The same, but one failure where the file system has not answered within `seconds`. Whoever waits
/// for it then is left to the kernel, which keeps a process with such a thread until it answers.
Findings examine_path_in_time(const std::string& path, double seconds = 30);

}  // namespace artesian::tools
