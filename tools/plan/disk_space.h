// Checks whether the disks below nvme_path have room for a plan's swap files, by the same rules as
// a run that reserves them (tiering/swap_file.h). Pure: the free bytes are an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "zero3/config/config.h"
#include "zero3/plan/placement.h"

namespace artesian::tools {

struct DiskSpace {
  struct Folder {
    std::string path;             // the same if two keys lead to one folder
    std::size_t file_system = 0;  // index into `free`
    double share = 1.0;           // its share of the bytes of its key's folders
  };
  std::vector<std::uint64_t> free;  // bytes, for each file system
  std::uint64_t ranks = 1;          // that share them, with files of their own
  // Folders of offload_param.nvme_path and of offload_optimizer.nvme_path; a key without folders
  // uses the other's. Empty: unknown, so no limit.
  std::vector<Folder> param, optimizer;
};

/// Returns the free bytes for one rank's swap files of this config; 0 if it has none, or they are
/// unknown.
std::uint64_t free_for(const DiskSpace& space, const zero3::Config& config);

/// Checks that the plan's files fit. Errors: NoSpace, with the bytes missing and the key to change.
Result<void> check_space(const DiskSpace& space, const zero3::Config& config,
                         const zero3::Placement& placement);

/// True if these shadows fit, too; a run uses at most half of the remaining space for them.
bool have_room(const DiskSpace& space, const zero3::Config& config,
               const zero3::Placement& placement, std::uint64_t shadows);

}  // namespace artesian::tools
