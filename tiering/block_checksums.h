// Out-of-band checksums of one shard's blocks: 16 bytes of memory per block, kept apart from the
// data, so that no block can vouch for itself.
//
// Each checksum is seeded with run id, rank, shard, block index and generation, and the generation
// grows with each seal. So equal bytes from another place or file, or from an earlier seal, do not
// match. The rank is included because all ranks of a run number their shards alike.
//
// Note [Pieces of a block]: a checksum is the wrapping sum of the checksums of the block's pieces,
// each XXH3-64 with a seed of its own. So several threads can each sum pieces that are in their
// caches anyway, in any order. The sum hides nothing that XXH3 detects: a piece that was changed or
// misplaced changes its own term and no other.
//
// Thread: any, for distinct blocks; `sum` also for the same block, while no thread seals it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace artesian::tiering {

class BlockChecksums {
 public:
  enum class Finding : std::uint8_t { Match, Mismatch, NeverSealed };
  enum class Generation : std::uint8_t {
    Current,
    Next
  };  // Current: for comparing; Next: for sealing

  static constexpr std::uint64_t piece_bytes = 32 << 10;

  struct Owner {  // The owner of the blocks: part of each checksum's seed.
    std::uint64_t run_id = 0;
    std::uint32_t rank = 0;
    std::uint32_t shard = 0;
  };
  BlockChecksums(const Owner& owner, std::uint64_t blocks);

  /// Starts the block's next generation and records the checksum of data: [length].
  void seal(std::uint64_t block, const std::byte* data, std::uint64_t length) noexcept;
  /// Wrapping sum of the checksums of the pieces in data: [length], which begins `offset` bytes
  /// into its block, a multiple of piece_bytes. Thread: any.
  static std::uint64_t sum_of_pieces(std::uint64_t seed, std::uint64_t offset,
                                     const std::byte* data, std::uint64_t length) noexcept;
  /// Compares data: [length] with the checksum of the last seal.
  Finding compare(std::uint64_t block, const std::byte* data, std::uint64_t length) const noexcept;
  /// For sealing or comparing in parts: returns the sum of the pieces in data: [length], which
  /// begins `offset` bytes into the block. Its beginning and end must be multiples of piece_bytes,
  /// unless it ends with the block. The caller adds up the sums of all parts (they wrap) and passes
  /// the total to `seal` or `compare`.
  std::uint64_t sum(std::uint64_t block, Generation generation, std::uint64_t offset,
                    const std::byte* data, std::uint64_t length) const noexcept;
  void seal(std::uint64_t block, std::uint64_t sum) noexcept;
  Finding compare(std::uint64_t block, std::uint64_t sum) const noexcept;
  /// Returns how often the block has been sealed.
  std::uint64_t generation(std::uint64_t block) const noexcept;
  std::uint64_t blocks() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t checksum = 0;
    std::uint64_t generation = 0;  // 0 = never sealed
  };

  Owner owner_;
  std::vector<Entry> entries_;
};

}  // namespace artesian::tiering
