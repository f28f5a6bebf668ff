// The superblock: how a swap file identifies itself, in `superblock_copies` equal copies, each in a
// 4096-byte block of its own at the start of the file. A copy is valid if it can be read and its
// checksum is right; of several valid copies the newest generation wins. So neither a bad sector
// nor a torn write of some copies loses anything.
//
// Block layout, little-endian: magic u64, version u32, rank u32, run id u64, generation u64,
// payload bytes u64, XXH3-64 of these 40 bytes u64, zeros.
#pragma once

#include <cstdint>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian::tiering {

constexpr std::uint64_t superblock_copies = 4;
constexpr std::uint64_t superblock_block_size = 4096;
/// The offset at which the payload starts.
constexpr std::uint64_t superblock_region_size = superblock_copies * superblock_block_size;
constexpr std::uint32_t superblock_version = 1;

struct Superblock {
  std::uint32_t version = superblock_version;
  std::uint32_t rank = 0;
  std::uint64_t run_id = 0;
  std::uint64_t generation = 0;  // grows with each commit; 0 = no step committed
  std::uint64_t payload_bytes = 0;

  bool operator==(const Superblock&) const = default;
};

/// Writes all copies. Errors: Io, NoSpace.
Result<void> write_superblock(File& file, const Superblock& superblock) noexcept;

/// The newest valid copy. Errors, if there is none: Io (a copy cannot be read), Corrupt;
/// Unsupported (format version).
Result<Superblock> read_superblock(File& file) noexcept;

}  // namespace artesian::tiering
