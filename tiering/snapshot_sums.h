// The file of a snapshot's checksums: 16 bytes of identification, then 16 bytes for each block, in
// file order. The file protects the blocks; the manifest protects this file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace artesian::tiering {

struct SnapshotSum {
  std::uint64_t sum = 0;     // BlockChecksums::sum_of_pieces with SnapshotSeed::of_block
  std::uint64_t length = 0;  // bytes
};

/// Returns the size of the file for this many blocks.
constexpr std::uint64_t snapshot_sums_size(std::uint64_t blocks) noexcept {
  return 16 + 16 * blocks;
}

std::string write_snapshot_sums(const std::vector<SnapshotSum>& sums);

/// Reads and checks such a file for blocks that fill `data_bytes` exactly. Errors: Corrupt, without
/// the file's name.
Result<std::vector<SnapshotSum>> read_snapshot_sums(std::string_view text,
                                                    std::uint64_t data_bytes);

}  // namespace artesian::tiering
