// The thread-pool engine: pread and pwrite on worker threads. It works on every kernel and under
// every seccomp filter. It makes one call per block, so `single_submit` has no effect.
#pragma once

#include "aio/engine_base.h"

namespace artesian::aio {

/// The most workers, whatever depth and threads ask for: more would only switch contexts.
inline constexpr std::uint64_t workers_max = 32;

/// `faults`: null outside tests; must outlive the engine.
Result<std::unique_ptr<Engine>> make_threads(const EngineOptions& options,
                                             FaultSeam* faults = nullptr) noexcept;

}  // namespace artesian::aio
