// SnapshotBlock: the unit in which a snapshot's file is written; each has one checksum.
#pragma once

#include <cstdint>

namespace artesian::tiering {

/// Offset and length are multiples of `grain`; 0 < length <= bytes_max.
struct SnapshotBlock {
  static constexpr std::uint64_t grain = 4096;
  static constexpr std::uint64_t bytes_max = 1 << 20;
  std::uint64_t offset = 0;  // bytes into the file
  std::uint64_t length = 0;
};

}  // namespace artesian::tiering
