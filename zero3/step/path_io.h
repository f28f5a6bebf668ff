// PathIo: the I/O settings for one folder of swap files.
//
// The config's aio section applies to all folders. Without it, each folder uses the best settings
// of its disk's machine profile, saved by `aio_bench tune`, or else the defaults; folders may
// differ, as each has its own I/O engine. These settings are best only for the I/O engine and the
// polling with which they were measured, so a config that names others gets the defaults. Results
// of a training do not depend on these settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "base/result.h"
#include "tiering/disk/profile.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

struct PathIo {
  aio::EngineOptions options;
  /// The engine named in a machine profile, used if artesian.engine is "auto".
  std::optional<aio::EngineKind> engine{};
};

/// The machine profile of the disk below one folder.
struct SavedProfile {
  std::string file{};  // equal for folders of one disk; empty if unknown
  std::optional<tiering::MachineProfile> profile{};
  std::optional<Error> fault{};  // set if there is a profile that cannot be used
};

/// Reads the profile of each folder; the folders need not exist yet.
std::vector<SavedProfile> saved_profiles(const std::vector<std::string>& directories);

struct PathIoChoice {
  std::vector<PathIo> paths;  // one for each folder
  std::vector<std::string>
      notes;  // one line each: which profiles are used, and which are not and why
};

/// Pure. `profiles`: one for each folder, or empty if none is known.
PathIoChoice choose_path_io(const Config& config, const std::vector<std::string>& directories,
                            const std::vector<SavedProfile>& profiles);

}  // namespace artesian::zero3
