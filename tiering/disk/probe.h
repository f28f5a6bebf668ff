// Facts about the machine that the plan needs: memory (base/machine.h), and the speed of the disk
// below a swap file.
#pragma once

#include <cstdint>

#include "aio/engine.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/result.h"
#include "pinned/pool.h"
#include "tiering/disk/extent.h"
#include "tiering/disk/stripe.h"

namespace artesian::tiering {

struct DiskProbeOptions {
  std::uint64_t bytes = 64 << 20;  // most bytes per direction; fewer if the range is smaller
  double seconds = 0.2;  // most seconds per direction: a slow disk is measured on fewer bytes
};

/// Writes and reads the start of `range` sequentially, like the transfers of a step. The old
/// content is lost. Borrows up to 16 MiB of the pool, or what is free. Errors: Exhausted (not one
/// block of the pool is free), Io, NoSpace, Timeout.
Result<DiskSpeed> probe_disk(File& file, Extent range, aio::Engine& engine, pinned::Pool& pool,
                             const DiskProbeOptions& options, Deadline deadline) noexcept;

}  // namespace artesian::tiering
