// ShardReader and ShardWriter: stream one shard from its first byte to its last, piece by piece,
// through a few buffers of the pool. The next pieces are read ahead, and finished ones written
// behind, while the caller works; every block is verified before it is handed out and sealed before
// it is written. For programs that use only this layer, and for shards that are read as a whole.
//
// Thread: the compute thread only. close() waits for transfers in flight and returns their errors;
// without close() the destructor waits and drops the errors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tiering/tier_store.h"

namespace artesian::tiering {

struct ShardStreamOptions {
  std::uint64_t piece_bytes = 1 << 20;  // rounded up to whole blocks of the shard
  std::uint32_t buffers = 2;            // pieces in memory at once, at least 1
};

/// The common base: the pieces of a shard in the pipeline, one of them in the caller's hands.
class ShardStream {
 public:
  ShardStream(ShardStream&&) noexcept;
  ~ShardStream();

 protected:
  class Pieces;
  explicit ShardStream(std::unique_ptr<Pieces> pieces) noexcept;
  static Result<std::unique_ptr<Pieces>> open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                              const ShardStreamOptions& options, bool reads);
  std::unique_ptr<Pieces> pieces_;
};

class ShardReader : public ShardStream {
 public:
  /// Starts reading. The shard's home is nvme, and nothing may be writing to it.
  /// Errors: Exhausted (the pool).
  static Result<ShardReader> open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                  const ShardStreamOptions& options = {});
  /// Returns the next piece, verified; valid until the next call. Empty at the end of the shard.
  /// Errors: Io, Corrupt, Timeout.
  Result<std::span<const std::byte>> next();
  /// Ends the reading. Errors: Io, Timeout, also of pieces that were read ahead but not used.
  Result<void> close();

 private:
  using ShardStream::ShardStream;
};

class ShardWriter : public ShardStream {
 public:
  /// Starts writing. Errors: Exhausted (the pool).
  static Result<ShardWriter> open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                  const ShardStreamOptions& options = {});
  /// Returns where the next piece's bytes go; fill all of it before the next call, which starts
  /// writing it. Empty at the end of the shard. Errors: Io, NoSpace, Timeout, of earlier pieces.
  Result<std::span<std::byte>> next();
  /// Writes the last piece and waits for all pieces. Errors: as next.
  Result<void> close();

 private:
  using ShardStream::ShardStream;
};

}  // namespace artesian::tiering
