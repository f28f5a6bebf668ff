// What a queue of the kernel answered for a block.
#pragma once

#include <cstdint>

#include "aio/engine_base.h"

namespace artesian::aio {

/// Refusals of the kernel in a row that are borne; one more is an error.
inline constexpr std::uint32_t refusals_max = 64;

/// Bytes, or -errno.
struct Answer {
  Block* block = nullptr;
  std::int64_t result = 0;
};

}  // namespace artesian::aio
