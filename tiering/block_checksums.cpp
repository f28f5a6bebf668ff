#include "tiering/block_checksums.h"

#include <array>

#include "base/check.h"
#include "kernels/checksum.h"

namespace artesian::tiering {

BlockChecksums::BlockChecksums(std::uint64_t run_id, std::uint32_t shard, std::uint64_t blocks)
    : run_id_(run_id), shard_(shard), entries_(blocks) {
  static_assert(sizeof(Entry) == 16, "what the memory formula counts per block");
  ARTESIAN_CHECK(blocks > 0);
}

std::uint64_t BlockChecksums::checksum(std::uint64_t block, std::uint64_t generation,
                                       const std::byte* data, std::uint64_t length) const noexcept {
  const std::array<std::uint64_t, 4> place{run_id_, shard_, block, generation};
  const std::uint64_t seed = kernels::checksum64(place.data(), sizeof(place), 0);
  return kernels::checksum64(data, length, seed);
}

void BlockChecksums::seal(std::uint64_t block, const std::byte* data,
                          std::uint64_t length) noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  ARTESIAN_CHECK(data != nullptr && length > 0, data, length);
  Entry& entry = entries_[block];
  ++entry.generation;
  entry.checksum = checksum(block, entry.generation, data, length);
}

void BlockChecksums::seal_unchecked(std::uint64_t block) noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  ++entries_[block].generation;
}

BlockChecksums::Finding BlockChecksums::compare(std::uint64_t block, const std::byte* data,
                                                std::uint64_t length) const noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  ARTESIAN_CHECK(data != nullptr && length > 0, data, length);
  const Entry& entry = entries_[block];
  if (entry.generation == 0) return Finding::NeverSealed;
  return checksum(block, entry.generation, data, length) == entry.checksum ? Finding::Match
                                                                           : Finding::Mismatch;
}

std::uint64_t BlockChecksums::generation(std::uint64_t block) const noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  return entries_[block].generation;
}

}  // namespace artesian::tiering
