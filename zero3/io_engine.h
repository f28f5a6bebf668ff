// The I/O engine that a configuration asks for.
#pragma once

#include <cstddef>
#include <memory>

#include "aio/engine.h"
#include "base/result.h"
#include "zero3/config.h"

namespace artesian::zero3 {

/// One engine for `paths` folders, each with places of its own in the kernel. Errors: Unsupported
/// (what artesian.engine asks for is not to be had here), Exhausted.
Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config, std::size_t paths);

}  // namespace artesian::zero3
