// TierStore: the tiered storage manager. It knows every shard of this rank and its home, moves
// bytes between that home and a buffer, and checks that the bytes read are those that were written.
//
// A shard is a contiguous byte range with one home tier, cut into blocks of `block_bytes`. Device
// and host homes are plain memory (`memory`), allocated from the two pools; an nvme home is space
// in swap files, accessed by `read` and `write`: an extent of one file, or stripes over the files
// of several paths (tiering/disk/stripe.h), whose transfers then have one part per path. Each block
// has an out-of-band checksum (XXH3-64 seeded with run id, shard, block index and generation):
// `seal` computes it from the bytes about to be written, `verify` compares it with bytes just read,
// both while the block, or a part of it (`sum_to_seal`, `sum_to_verify`), is in the cache, on the
// thread that casts or updates it. A block's generation grows with each seal, so a flipped, stale
// or misplaced block is an error that names the shard, never a silently wrong weight.
//
// Note [Shadows]: a shard on nvme may have a second place, its shadow, so that writes can be rolled
// back. From begin_shadow on, the shard is written to the shadow and still read from its old place.
// commit_shadow swaps the two; drop_shadow discards what was written. Nothing is copied.
//
// Note [A disk that does not answer]: a wait that reaches its deadline returns Timeout. From then
// on waits return at once, until a transfer ends: a hung disk costs one deadline, not one per
// transfer. The kernel may still write to the buffers in flight, so after `close` has returned
// Timeout, the store, its pools, engine and transfers must not be destroyed: their owner passes
// them to keep_for_ever (base/keep_for_ever.h). The swap files remain, and the next run reclaims
// them. A disk that hangs while it is measured (`open`, `probe_disk`) is abandoned at once: open
// then returns Timeout and leaves its files open for ever; after such a probe_disk, close does the
// same, each time. Memory that the kernel may still write to is lost to the pool, so that pools and
// engine may then be destroyed.
//
// Thread: all calls from the compute thread, except seal and verify, which any thread may call for
// distinct blocks, and the sums, for any parts of blocks that no thread seals meanwhile. Reading a
// shard with writes in flight is a programmer error (see `writing`).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/timeline.h"
#include "pinned/pool.h"
#include "tiering/block_checksums.h"
#include "tiering/byte_range.h"
#include "tiering/disk/probe.h"
#include "tiering/swap_file.h"
#include "tiering/tier.h"
#include "tiering/transfer.h"

namespace artesian::tiering {

/// Index into the shard list given to TierStore::open.
enum class ShardId : std::uint32_t {};

enum class Verify : std::uint8_t { Full, Sample, Off };  // Sample: every 16th block

struct ShardOptions {
  std::string name;  // for errors: "h.3 exp_avg", ...
  Tier home = Tier::Nvme;
  std::uint64_t bytes = 0;        // > 0, multiple of 4096
  std::uint64_t block_bytes = 0;  // multiple of 4096; usually 1 MiB, or a whole matrix
  std::uint32_t volume = 0;       // for Tier::Nvme: which of `volumes`
};

struct TierStoreOptions {
  std::vector<std::string> directories;  // one swap file each; may be empty if no shard is on nvme
  /// The directories over which a shard's bytes are divided. Empty: each directory is a volume of
  /// its own.
  std::vector<std::vector<std::uint32_t>> volumes{};
  /// The disk of each directory, for dividing volumes. Empty: disks are measured if a volume has
  /// several directories.
  std::vector<PathDisk> disks{};
  std::uint64_t stripe_bytes = 1 << 20;  // size of the stripes, cut to whole blocks
  std::uint64_t run_id = 0;
  std::uint32_t rank = 0;
  Verify verify = Verify::Full;
  double wait_seconds = 60.0;    // deadline of every wait: Note [A disk that does not answer]
  Timeline* timeline = nullptr;  // receives a span for each transfer; may be null
};

struct TierStoreStatistics {
  std::uint64_t bytes_read = 0;     // bytes read from nvme so far
  std::uint64_t bytes_written = 0;  // bytes written to nvme so far
  std::uint64_t blocks_verified = 0;
  std::uint64_t verify_failures = 0;
};

class TierStore {
 public:
  /// Allocates every home. The pools, engine and file system must outlive the store. Errors:
  /// Exhausted (a pool is too small), Timeout, and those of SwapFile::create.
  static Result<std::unique_ptr<TierStore>> open(const TierStoreOptions& options,
                                                 std::vector<ShardOptions> shards,
                                                 pinned::Pool& device, pinned::Pool& host,
                                                 aio::Engine& engine, FileSystem& files) noexcept;
  ~TierStore();  // checks that close() was called
  /// Drains and removes the swap files. Errors: Io; Timeout, after which it may be called again. No
  /// file was touched then, as a hung file system would block that for ever.
  Result<void> close() noexcept;

  /// Reserves space for `shards`, all on nvme, which get the next ids, and for a shadow of each of
  /// `shadowed`. This space is optional, so it takes at most half of the free bytes. Errors: Io,
  /// NoSpace, after which nothing has changed.
  Result<void> grow(std::vector<ShardOptions> shards, std::span<const ShardId> shadowed) noexcept;
  /// The number of shards, which is the next one's id.
  std::size_t size() const noexcept;

  const ShardOptions& shard(ShardId id) const noexcept;
  /// First byte of a device- or host-homed shard: [shard.bytes]. Not for nvme homes.
  std::byte* memory(ShardId id) noexcept;

  /// Starts moving `range` of an nvme-homed shard into `target` (size >= range.length). The caller
  /// owns the transfer, finishes it with `wait`, and verifies each block before use.
  void read(Transfer& transfer, ShardId id, ByteRange range, BufferLease target,
            aio::Priority priority) noexcept;
  /// Starts writing; `seal` each block of the range first. Whole blocks only (the shard's last
  /// block may be short).
  void write(Transfer& transfer, ShardId id, ByteRange range, BufferLease source,
             aio::Priority priority) noexcept;
  /// Sleeps until ready and returns the outcome, errors naming the shard. Errors: Io, NoSpace,
  /// Timeout.
  Result<void> wait(Transfer& transfer, ShardId id) noexcept;
  /// True if a write to this shard is still in flight.
  bool writing(ShardId id) const noexcept;
  /// Sleeps until no write to this shard is in flight. The completions stay with their owners, who
  /// get the outcomes, too. Errors: as wait.
  Result<void> finish_writes(ShardId id) noexcept;

  /// Records the checksum and next generation of block `block` whose bytes are at `data`.
  void seal(ShardId id, std::uint64_t block, const std::byte* data) noexcept;
  /// Compares a block with its checksum. Errors: Corrupt, naming shard, block, file and offset.
  Result<void> verify(ShardId id, std::uint64_t block, const std::byte* data) noexcept;
  /// Parts of a block begin and end at multiples of this, or end with the block.
  static constexpr std::uint64_t checksum_piece_bytes = BlockChecksums::piece_bytes;
  /// Seal and verify in parts: for the bytes `part` of the block, which are at `data`. The caller
  /// adds up the sums of all parts of the block (they wrap). The sums are 0 for blocks that
  /// `options.verify` skips.
  std::uint64_t sum_to_seal(ShardId id, std::uint64_t block, ByteRange part,
                            const std::byte* data) const noexcept;
  std::uint64_t sum_to_verify(ShardId id, std::uint64_t block, ByteRange part,
                              const std::byte* data) const noexcept;
  void seal_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept;
  /// Errors: Corrupt, as verify.
  Result<void> verify_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept;
  /// From here on seals and writes go to the shadow: Note [Shadows].
  void begin_shadow(ShardId id) noexcept;
  /// Makes the shadow the shard's place; all blocks must have been sealed since begin_shadow.
  void commit_shadow(ShardId id) noexcept;
  void drop_shadow(ShardId id) noexcept;
  /// Bytes of block `block`: block_bytes, or less for the last.
  std::uint64_t block_length(ShardId id, std::uint64_t block) const noexcept;

  TierStoreStatistics statistics() const noexcept;
  Timeline* timeline() const noexcept;  // the timeline of the options
  /// Returns the bytes that each directory has read and written so far.
  const std::vector<PathBytes>& path_bytes() const noexcept;

  /// Returns the combined speed of the disks of `volumes[volume]`. Measures the disks whose speed
  /// is unknown, each in at most about half a second, by writing and reading the start of its swap
  /// file; call it before the first write. `staging` lends up to 16 MiB for a moment. {0, 0} if no
  /// shard uses a path. Errors: Exhausted, Io, NoSpace, Timeout.
  Result<DiskSpeed> probe_disk(std::uint32_t volume, pinned::Pool& staging) noexcept;
  /// The disk of each directory, as far as its speed is known.
  const std::vector<PathDisk>& disks() const noexcept;
  /// The share of `volumes[volume]` that each of its directories carries.
  std::vector<PathShare> shares(std::uint32_t volume) const;

 private:
  class Impl;
  explicit TierStore(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace artesian::tiering
