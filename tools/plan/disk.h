// The disks below the folders of nvme_path, as a plan needs them: their speed and free space.
#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "tiering/disk/stripe.h"
#include "tools/plan/disk_space.h"
#include "zero3/config/config.h"

namespace artesian::tools {

/// The folders of one key, over which its bytes are divided.
struct SwapVolume {
  std::vector<std::string> folders;
  std::vector<tiering::PathDisk> disks;  // one for each folder
  bool duplex = true;
  std::string measured_at;         // time of the oldest profile; empty: assumed rates
  std::vector<std::string> notes;  // about the I/O settings of these speeds
};

/// The volumes of both keys; if one key names no folder, it uses the other's.
struct SwapVolumes {
  SwapVolume param, optimizer;
  bool same = true;    // both keys name the same folders
  bool apart = false;  // parameters and optimizer state share no disk
};

struct SwapVolumesOptions {
  bool here = true;            // false: an unknown machine, assumed to have a disk for each folder
  tiering::DiskSpeed assumed;  // assumed speed of a disk, if a key's disks are not all measured
};

SwapVolumes swap_volumes(const zero3::Config& config, const SwapVolumesOptions& options);

/// Returns the free bytes in the folders, including files of dead runs, which the next run removes.
/// If a folder and its parent are missing, its key has no figure.
DiskSpace free_space(const SwapVolumes& volumes, FileSystem& files);

}  // namespace artesian::tools
