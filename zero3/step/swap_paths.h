// SwapPaths: the folders of a run's swap files, without duplicates, and those over which parameters
// and optimizer state are each divided (tiering/disk/stripe.h). The two lists may share folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tiering/disk/stripe.h"
#include "zero3/config/config.h"
#include "zero3/step/path_io.h"

namespace artesian::zero3 {

struct SwapPaths {
  std::vector<std::string> directories;
  std::vector<std::vector<std::uint32_t>> volumes;  // indices of directories, by volume
  std::uint32_t param_volume = 0;
  std::uint32_t optimizer_volume = 0;
  std::vector<tiering::PathDisk> disks{};  // one for each directory; empty: unknown
  std::vector<PathIo> io{};                // one for each directory
  std::vector<std::string> notes{};        // notes about the source of these settings
  std::uint64_t stripe_bytes = 1 << 20;
};

/// The bytes moved by one folder of swap files.
struct SwapPathUse {
  std::string directory;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
};

/// The same for each folder, as a counter that can be added and subtracted; empty means all zeros.
struct SwapPathsUse {
  std::vector<SwapPathUse> paths{};
  SwapPathsUse& operator+=(const SwapPathsUse& more);
  SwapPathsUse operator-(const SwapPathsUse& before) const;
};

/// The folders need not exist yet. Errors: Invalid (one list names a folder in two ways).
Result<SwapPaths> resolve_swap_paths(const std::vector<std::string>& param,
                                     const std::vector<std::string>& optimizer);

/// The swap paths of a configuration. Disks are those given, or, if there are several paths and
/// `aio_bench tune` measured them all, the measured ones. Settings are the config's, or those of
/// the machine profiles (path_io.h). Errors: as above; Invalid (the number of disks is wrong).
Result<SwapPaths> swap_paths_of(const Config& config,
                                const std::vector<tiering::PathDisk>& disks = {});

}  // namespace artesian::zero3
