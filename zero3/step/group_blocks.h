// GroupBlocks: the checksum blocks of one sub-group that a pass reads from NVMe or writes there,
// with their checksums so far. These are sums over pieces, so each thread adds the sums of the
// elements that it works on, while they are in its cache; the results are known once all threads
// are done.
//
// Thread: `add_...` any, for disjoint elements; the other functions the compute thread, before and
// after.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/result.h"
#include "tiering/tier_store.h"

namespace artesian::zero3 {

class GroupBlocks {
 public:
  /// The arrays of a sub-group may be cut at multiples of this many elements: pieces of any dtype.
  static constexpr std::uint64_t slice = 16384;
  static_assert(slice * 2 % tiering::TierStore::checksum_piece_bytes == 0);

  explicit GroupBlocks(tiering::TierStore& store) noexcept : store_(store) {}

  /// Adds a block, which holds an array with elements of this size; ignores shards in memory.
  void list(tiering::ShardId shard, std::uint64_t block, const void* data,
            std::uint64_t element_size) noexcept;
  bool empty() const noexcept { return count_ == 0; }

  /// Add the sums of elements [begin, end) of each block, as read or as they will be written.
  void add_to_verify(std::uint64_t begin, std::uint64_t end) noexcept;
  void add_to_seal(std::uint64_t begin, std::uint64_t end) noexcept;

  /// Verifies the blocks; all elements must have been added. Errors: Corrupt, of the first damaged
  /// one.
  Result<void> verify() noexcept;
  void seal() noexcept;

 private:
  struct Block {
    tiering::ShardId shard{};
    std::uint64_t block = 0;
    const std::byte* data = nullptr;
    std::uint64_t element_size = 0;
    std::atomic<std::uint64_t> sum{0};
  };

  tiering::TierStore& store_;
  std::array<Block, 5> blocks_;  // two moments, the rest of the record, parameter, gradient
  std::size_t count_ = 0;
};

}  // namespace artesian::zero3
