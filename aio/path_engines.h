// One engine for each swap path, as one: each path has a queue depth, a write cap and progress
// threads of its own, so that a slow disk fills its own slots and never those of a fast one.
//
// Transfers of path `i` go to `for_path(i)`, and are waited for there; what is asked of the whole
// (drain, statistics, registering memory) is asked of all.
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
