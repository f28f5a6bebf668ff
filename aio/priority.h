#pragma once

#include <cstdint>

namespace artesian::aio {

/// Classes of requests; the first is served first.
enum class Priority : std::uint8_t { Demand, Prefetch, OptimizerRead, WriteBack };

}  // namespace artesian::aio
