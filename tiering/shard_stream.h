// ShardReader and ShardWriter: one shard from its first byte to its last, piece by piece, through a
// few buffers of the pool. Coming pieces are read ahead and past ones written behind the caller's
// work; every block is verified before it is handed out and sealed before it is written. For
// programs that use this layer alone, and for shards that are read as a whole.
//
// Thread: the compute thread only. close() waits for what is in flight and says what became of it;
// without it the destructor waits, and says nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tiering/staging_ring.h"

namespace artesian::tiering {

struct ShardStreamOptions {
  std::uint64_t piece_bytes = 1 << 20;  // rounded up to whole blocks of the shard
  std::uint32_t buffers = 2;            // pieces in memory at once, 1 and more
};

class ShardReader {
 public:
  /// Starts reading. The shard's home is nvme, and nothing may be writing to it.
  /// Errors: Exhausted (the pool).
  static Result<ShardReader> open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                  const ShardStreamOptions& options = {});
  ShardReader(ShardReader&&) noexcept = default;
  ~ShardReader();
  /// The next piece, verified; valid until the next call. Empty at the end of the shard.
  /// Errors: Io, Corrupt, Timeout.
  Result<std::span<const std::byte>> next();
  /// Errors: Io, Timeout, of pieces that nobody took.
  Result<void> close();

 private:
  ShardReader(TierStore& store, ShardId shard, std::uint64_t piece_bytes)
      : store_(&store), shard_(shard), piece_bytes_(piece_bytes) {}
  void start_piece();

  TierStore* store_;
  ShardId shard_;
  std::uint64_t piece_bytes_;
  std::uint64_t offset_asked_ = 0;  // bytes whose reads were started
  std::uint64_t offset_given_ = 0;  // bytes handed out
  std::uint64_t turn_asked_ = 0;
  std::uint64_t turn_given_ = 0;
  std::unique_ptr<StagingRing> ring_;
};

class ShardWriter {
 public:
  /// Errors: Exhausted (the pool).
  static Result<ShardWriter> open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                  const ShardStreamOptions& options = {});
  ShardWriter(ShardWriter&&) noexcept = default;
  ~ShardWriter();
  /// Returns where the next piece's bytes go; fill all of it before the next call, which starts
  /// writing it. Empty at the end of the shard. Errors: Io, NoSpace, Timeout, of earlier pieces.
  Result<std::span<std::byte>> next();
  /// Writes the last piece and waits for all. Errors: as next.
  Result<void> close();

 private:
  ShardWriter(TierStore& store, ShardId shard, std::uint64_t piece_bytes)
      : store_(&store), shard_(shard), piece_bytes_(piece_bytes) {}
  void write_pending();

  TierStore* store_;
  ShardId shard_;
  std::uint64_t piece_bytes_;
  std::uint64_t offset_ = 0;          // of the piece that comes next
  std::uint64_t pending_length_ = 0;  // of the piece that the caller is filling
  std::uint64_t turn_ = 0;
  std::unique_ptr<StagingRing> ring_;
};

}  // namespace artesian::tiering
