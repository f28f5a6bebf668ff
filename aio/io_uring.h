// The io_uring engine: `threads` rings, each used by one progress thread alone.
#pragma once

#include "aio/engine_base.h"

namespace artesian::aio {

/// `faults`: null outside tests; must outlive the engine. Errors: Unsupported (with the kernel's
/// errno: ENOSYS, EPERM, ENOMEM, or 0 for a kernel that is too old), Exhausted.
Result<std::unique_ptr<Engine>> make_io_uring(const EngineOptions& options,
                                              FaultSeam* faults = nullptr) noexcept;

}  // namespace artesian::aio
