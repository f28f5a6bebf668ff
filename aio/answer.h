// What a queue of the kernel answered for a block.
#pragma once

#include <cstdint>

#include "aio/engine_base.h"

namespace artesian::aio {

/// Bytes, or -errno.
struct Answer {
  Block* block = nullptr;
  std::int64_t result = 0;
};

}  // namespace artesian::aio
