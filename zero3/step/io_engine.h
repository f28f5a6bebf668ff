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

/// Makes one engine for these folders, with kernel slots and settings for each folder. Errors:
/// Unsupported (the engine that artesian.engine asks for is not available), Exhausted.
Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config,
                                                    const std::vector<PathIo>& paths);

/// Describes the I/O features in use by the engine of `paths` folders, with the share of blocks so
/// far that used them: "io_uring; direct 100%, registered memory 100%, registered files 98% of
/// blocks". With several folders it covers all engines. Empty if nothing was transferred.
std::string describe_io(aio::Engine& engine, std::size_t paths);

}  // namespace artesian::zero3
