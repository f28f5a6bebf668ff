// Out-of-band checksums of one shard's blocks: 16 bytes of memory per block, kept apart from the
// data, so that no block can vouch for itself.
//
// Each checksum is seeded with run id, rank, shard, block index and generation, and the generation
// grows with each seal. So equal bytes in another place or file, or of an earlier seal, do not
// match either: ranks of one run number their shards alike.
//
// Note [Pieces of a block]: a checksum is the wrapping sum of those of the block's pieces, each
// XXH3-64 with a seed of its own. So several threads can each take pieces while they are in their
// caches anyway, in any order, and a sum does not hide what XXH3 finds: a piece that changed, or is
// in another's place, changes its own term and no other.
//
// Thread: any, for distinct blocks; `sum` also for one block, while nobody seals it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace artesian::tiering {

class BlockChecksums {
 public:
  enum class Finding : std::uint8_t { Match, Mismatch, NeverSealed };
  enum class Generation : std::uint8_t { Current, Next };  // for comparing, and for sealing

  static constexpr std::uint64_t piece_bytes = 32 << 10;

  struct Owner {  // The owner of the blocks: part of each checksum's seed.
    std::uint64_t run_id = 0;
    std::uint32_t rank = 0;
    std::uint32_t shard = 0;
  };
  BlockChecksums(const Owner& owner, std::uint64_t blocks);

  /// Starts the block's next generation and records the checksum of data: [length].
  void seal(std::uint64_t block, const std::byte* data, std::uint64_t length) noexcept;
  /// Wrapping sum of the pieces in data: [length], which begins `offset` bytes into its block, a
  /// multiple of piece_bytes. Thread: any.
  static std::uint64_t sum_of_pieces(std::uint64_t seed, std::uint64_t offset,
                                     const std::byte* data, std::uint64_t length) noexcept;
  /// Compares data: [length] with what the last seal recorded.
  Finding compare(std::uint64_t block, const std::byte* data, std::uint64_t length) const noexcept;
  /// The same in parts. Sum of the pieces in data: [length], which begins `offset` bytes into the
  /// block, a multiple of piece_bytes; so is its end, unless it is the block's. Sums of all parts
  /// are added up (they wrap), and then given to `seal` or `compare`.
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
