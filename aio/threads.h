// The thread-pool engine: pread and pwrite on worker threads. Works on every kernel and under every
// filter. One call per block, so that `single_submit` changes nothing.
#pragma once

#include "aio/engine_base.h"

namespace artesian::aio {

/// At most this many workers, whatever depth and threads ask for: more only switch contexts.
inline constexpr std::uint64_t workers_max = 32;

/// `faults`: null outside tests; must outlive the engine.
Result<std::unique_ptr<Engine>> make_threads(const EngineOptions& options,
                                             FaultSeam* faults = nullptr) noexcept;

}  // namespace artesian::aio
