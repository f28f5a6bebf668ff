// The I/O engine that a configuration asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "base/result.h"
#include "zero3/config/config.h"
#include "zero3/step/path_io.h"

namespace artesian::zero3 {

/// One engine for these folders, each with places of its own in the kernel and settings of its own.
/// Errors: Unsupported (what artesian.engine asks for is not to be had here), Exhausted.
Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config,
                                                    const std::vector<PathIo>& paths);

/// Says what is in effect, of the engine of `paths` folders, and what share of the blocks so far
/// had it: "io_uring; direct 100%, registered memory 100%, registered files 98% of blocks". Of
/// several folders all engines. Empty where nothing was moved.
std::string describe_io(aio::Engine& engine, std::size_t paths);

}  // namespace artesian::zero3
