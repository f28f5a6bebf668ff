#pragma once

#include <cstdint>

namespace artesian::tiering {

/// An aligned byte range of a file.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

}  // namespace artesian::tiering
