#include "tiering/block_checksums.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/checksum.h"

namespace artesian::tiering {

BlockChecksums::BlockChecksums(const Owner& owner, std::uint64_t blocks)
    : owner_(owner), entries_(blocks) {
  static_assert(sizeof(Entry) == 16, "what the memory formula counts per block");
  ARTESIAN_CHECK(blocks > 0);
}

std::uint64_t BlockChecksums::sum_of_pieces(std::uint64_t seed, std::uint64_t offset,
                                            const std::byte* data, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(data != nullptr && length > 0, data, length);
  ARTESIAN_CHECK(offset % piece_bytes == 0, offset, piece_bytes);
  // Makes seeds that differ in many bits.
  constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15;
  std::uint64_t sum = 0;
  for (std::uint64_t done = 0; done < length; done += piece_bytes) {
    const std::uint64_t piece = (offset + done) / piece_bytes;
    sum += kernels::checksum64(data + done, std::min(length - done, piece_bytes),
                               seed + piece * golden_ratio);
  }
  return sum;
}

std::uint64_t BlockChecksums::sum(std::uint64_t block, Generation generation, std::uint64_t offset,
                                  const std::byte* data, std::uint64_t length) const noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  const std::uint64_t which = entries_[block].generation + (generation == Generation::Next ? 1 : 0);
  const std::array<std::uint64_t, 5> place{owner_.run_id, owner_.rank, owner_.shard, block, which};
  const std::uint64_t seed = kernels::checksum64(place.data(), sizeof(place), 0);
  return sum_of_pieces(seed, offset, data, length);
}

void BlockChecksums::seal(std::uint64_t block, const std::byte* data,
                          std::uint64_t length) noexcept {
  seal(block, sum(block, Generation::Next, 0, data, length));
}

void BlockChecksums::seal(std::uint64_t block, std::uint64_t sum) noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  Entry& entry = entries_[block];
  ++entry.generation;
  entry.checksum = sum;
}

BlockChecksums::Finding BlockChecksums::compare(std::uint64_t block, const std::byte* data,
                                                std::uint64_t length) const noexcept {
  return compare(block, sum(block, Generation::Current, 0, data, length));
}

BlockChecksums::Finding BlockChecksums::compare(std::uint64_t block,
                                                std::uint64_t sum) const noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  const Entry& entry = entries_[block];
  if (entry.generation == 0) return Finding::NeverSealed;
  return sum == entry.checksum ? Finding::Match : Finding::Mismatch;
}

std::uint64_t BlockChecksums::generation(std::uint64_t block) const noexcept {
  ARTESIAN_CHECK(block < entries_.size(), block, entries_.size());
  return entries_[block].generation;
}

}  // namespace artesian::tiering
