// The I/O engine that a configuration asks for.
#pragma once

#include <memory>
#include <vector>

#include "aio/engine.h"
#include "base/result.h"
#include "zero3/config.h"
#include "zero3/path_io.h"

namespace artesian::zero3 {

/// One engine for these folders, each with places of its own in the kernel and settings of its own.
/// Errors: Unsupported (what artesian.engine asks for is not to be had here), Exhausted.
Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config,
                                                    const std::vector<PathIo>& paths);

}  // namespace artesian::zero3
