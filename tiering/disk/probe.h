// Facts of the machine that the plan needs: memory (base/machine.h), and what the disk below a swap
// file really does.
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
  std::uint64_t bytes = 64 << 20;  // per direction, at most; less where the range is smaller
  double seconds = 0.2;            // per direction: a slow disk is measured on fewer bytes
};

/// Writes and reads the start of `range`, sequentially, as transfers of a step do. Whatever was
/// there is lost. Needs some of the pool for a moment: up to 16 MiB, or what is free.
/// Errors: Exhausted (not one block of the pool is free), Io, NoSpace, Timeout.
Result<DiskSpeed> probe_disk(File& file, Extent range, aio::Engine& engine, pinned::Pool& pool,
                             const DiskProbeOptions& options, Deadline deadline) noexcept;

}  // namespace artesian::tiering
