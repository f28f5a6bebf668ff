// The libaio engine: per `threads` one AIO context of the kernel and one progress thread, which
// alone touches it. For where io_uring is refused. Only direct transfers are asynchronous: others
// block the progress thread while they are submitted (said once).
#pragma once

#include "aio/engine_base.h"

namespace artesian::aio {

/// `faults`: null outside tests; must outlive the engine. Errors: Unsupported (with the kernel's
/// errno: ENOSYS, EPERM, EAGAIN at fs.aio-max-nr, EOPNOTSUPP before Linux 4.18), Exhausted.
Result<std::unique_ptr<Engine>> make_libaio(const EngineOptions& options,
                                            FaultSeam* faults = nullptr) noexcept;

}  // namespace artesian::aio
