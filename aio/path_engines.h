// Several engines, one for each swap path, behind the interface of one. Each path has its own queue
// depth, write cap and progress threads, so that a slow disk fills its own slots and never those of
// a fast one.
//
// Transfers of path `i` are submitted to `for_path(i)` and waited for there; calls that concern the
// whole (drain, statistics, registering memory) are passed to all.
#pragma once

#include <functional>
#include <memory>

#include "aio/engine.h"

namespace artesian::aio {

/// Makes `count` engines, one for each path in order, joined as
/// one; a single engine is returned as it is. Errors: those of
/// `make`.
Result<std::unique_ptr<Engine>> make_path_engines(
    std::uint32_t count, const std::function<Result<std::unique_ptr<Engine>>()>& make);

}  // namespace artesian::aio
