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
  std::vector<tiering::PathDisk> disks;  // of each
  bool duplex = true;
  std::string measured_at;         // by aio_bench tune, the first of them; empty: as assumed
  std::vector<std::string> notes;  // of the I/O settings that speeds are for (zero3/step/path_io.h)
};

/// The volumes of both keys; where one names no folder, the other's.
struct SwapVolumes {
  SwapVolume param, optimizer;
  bool same = true;    // both are the same folders
  bool apart = false;  // they share no disk
};

struct SwapVolumesOptions {
  bool here = true;            // else of a machine of which nothing is known: a disk each
  tiering::DiskSpeed assumed;  // of a disk, where it is not known of all disks of a key
};

SwapVolumes swap_volumes(const zero3::Config& config, const SwapVolumesOptions& options);

/// Returns what is free there now, with what dead runs left, which the next one removes. Of a key
/// of which a folder and its parent are missing, nothing is known.
DiskSpace free_space(const SwapVolumes& volumes, FileSystem& files);

}  // namespace artesian::tools
