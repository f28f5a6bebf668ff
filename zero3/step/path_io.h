// PathIo: how the transfers of one folder of swap files are made.
//
// The config's aio section says it for all folders. Without one, a folder gets what `aio_bench
// tune` found best for its disk and kept in the disk's machine profile, or else the defaults; each
// folder its own, as each has an I/O engine of its own. What was found best holds for the I/O
// engine and the polling that it was measured with, so a config that names others gets the
// defaults. No bit of a training depends on any of it.
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
  /// The engine of a machine profile, to be preferred where artesian.engine is "auto".
  std::optional<aio::EngineKind> engine{};
};

/// The machine profile of the disk below one folder.
struct SavedProfile {
  std::string file{};  // equal for folders of one disk; empty if unknown
  std::optional<tiering::MachineProfile> profile{};
  std::optional<Error> fault{};  // there is one, of no use
};

/// One for each folder; these need not exist yet.
std::vector<SavedProfile> saved_profiles(const std::vector<std::string>& directories);

struct PathIoChoice {
  std::vector<PathIo> paths;       // one for each folder
  std::vector<std::string> notes;  // a line each: which profiles were taken, which were not and why
};

/// Pure. `profiles` has one for each folder, or is empty: none is known.
PathIoChoice choose_path_io(const Config& config, const std::vector<std::string>& directories,
                            const std::vector<SavedProfile>& profiles);

}  // namespace artesian::zero3
