// The disks below the folders of nvme_path, as a plan needs them: how fast they are, and how much
// of them is free.
#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "tiering/disk/stripe.h"
#include "tools/plan/disk_space.h"
#include "zero3/config/config.h"

namespace artesian::tools {

/// The folders of one key, which share its bytes.
struct SwapVolume {
  std::vector<std::string> folders;
  std::vector<tiering::PathDisk> disks;  // one for each folder
  bool duplex = true;
  std::string measured_at;         // of the oldest profile; empty: assumed rates
  std::vector<std::string> notes;  // on the I/O settings of these speeds
};

/// The volumes of both keys; where one names no folder, the other's.
struct SwapVolumes {
  SwapVolume param, optimizer;
  bool same = true;    // both are the same folders
  bool apart = false;  // parameters and optimizer state share no disk
};

struct SwapVolumesOptions {
  bool here = true;            // false: an unknown machine with a disk for each folder
  tiering::DiskSpeed assumed;  // speed of a disk if a key's disks are not all measured
};

SwapVolumes swap_volumes(const zero3::Config& config, const SwapVolumesOptions& options);

/// Returns the free bytes there, including files of dead runs, which the next run removes. If a
/// folder and its parent are missing, its key has no figure.
DiskSpace free_space(const SwapVolumes& volumes, FileSystem& files);

}  // namespace artesian::tools
