// What a queue of the kernel answered for a block.
#pragma once

#include <cstdint>

#include "aio/engine_base.h"

namespace artesian::aio {

/// The kernel may refuse this many times in a row; one more refusal is an error.
inline constexpr std::uint32_t refusals_max = 64;

/// Bytes transferred, or -errno.
struct Answer {
  Block* block = nullptr;
  std::int64_t result = 0;
};

}  // namespace artesian::aio
