// ByteRange: an offset and a length, in bytes.
#pragma once

#include <cstdint>

namespace artesian::tiering {

struct ByteRange {
  std::uint64_t offset = 0;  // multiple of 4096
  std::uint64_t length = 0;  // multiple of 4096, > 0
};

}  // namespace artesian::tiering
