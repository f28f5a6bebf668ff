// Out-of-band checksums of one shard's blocks: 16 bytes of memory per block, kept apart from the
// data, so that no block can vouch for itself.
//
// Each checksum is seeded with run id, shard, block index and generation, and the generation grows
// with each seal. So equal bytes in another place, or of an earlier seal, do not match either.
//
// Thread: any, for distinct blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace artesian::tiering {

class BlockChecksums {
 public:
  enum class Finding : std::uint8_t { Match, Mismatch, NeverSealed };

  BlockChecksums(std::uint64_t run_id, std::uint32_t shard, std::uint64_t blocks);

  /// Starts the block's next generation and records the checksum of data: [length].
  void seal(std::uint64_t block, const std::byte* data, std::uint64_t length) noexcept;
  /// The same, without a checksum: for blocks that are never compared.
  void seal_unchecked(std::uint64_t block) noexcept;
  /// Compares data: [length] with what the last seal recorded.
  Finding compare(std::uint64_t block, const std::byte* data, std::uint64_t length) const noexcept;
  /// Number of seals so far.
  std::uint64_t generation(std::uint64_t block) const noexcept;
  std::uint64_t blocks() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t checksum = 0;
    std::uint64_t generation = 0;  // 0 = never sealed
  };

  std::uint64_t checksum(std::uint64_t block, std::uint64_t generation, const std::byte* data,
                         std::uint64_t length) const noexcept;

  std::uint64_t run_id_;
  std::uint32_t shard_;
  std::vector<Entry> entries_;
};

}  // namespace artesian::tiering
