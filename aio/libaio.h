// The libaio engine: `threads` AIO contexts of the kernel, each used by one progress thread alone.
// It is for systems that refuse io_uring. Only direct transfers are asynchronous: other transfers
// block the progress thread during submission (one warning is logged).
#pragma once

#include "aio/engine_base.h"

namespace artesian::aio {

/// `faults`: null outside tests; must outlive the engine. Errors: Unsupported (with the kernel's
/// errno: ENOSYS, EPERM, EAGAIN at fs.aio-max-nr, EOPNOTSUPP before Linux 4.18), Exhausted.
Result<std::unique_ptr<Engine>> make_libaio(const EngineOptions& options,
                                            FaultSeam* faults = nullptr) noexcept;

}  // namespace artesian::aio
