// TierStore: the tiered storage manager. It knows every shard of this rank, where its home is, how
// to move bytes between that home and a buffer, and whether what came back is what was written.
//
// A shard is a contiguous byte range with one home tier, cut into blocks of `block_bytes`. Device
// and host homes are plain memory (`memory`), allocated from the two pools; an nvme home is space
// in swap files, moved by `read` and `write`: an extent of one, or stripes over those of several
// paths (tiering/disk/stripe.h), whose transfers then have a part for each. Each block has an
// out-of-band checksum (XXH3-64 seeded with run id, shard, block index and generation): `seal`
// computes it from the bytes about to be written, `verify` compares it with bytes just read, both
// while the block, or a part of it (`sum_to_seal`, `sum_to_verify`), is hot in cache, on whatever
// thread casts or updates it. A block's generation grows with each seal, so a flipped, stale or
// misplaced block is an error that names the shard, never a silently wrong weight.
//
// Note [Shadows]: a shard on nvme may have a second place, its shadow, so that what is written can
// be taken back: from begin_shadow on it is written there, and still read where it was.
// commit_shadow makes the one the other; drop_shadow leaves all as it was. Nothing is copied.
//
// Note [A disk that does not answer]: a wait that runs into its deadline returns Timeout, and from
// then on waits return at once with what is there, until something comes back: a hung disk costs
// one deadline, not one per transfer. The kernel may still write to the buffers of what is in
// flight, so after `close` returned Timeout neither the store nor its pools, engine or transfers
// may be destroyed: their owner gives them to keep_for_ever (base/keep_for_ever.h). The swap files
// stay, and the next run reclaims them. A disk that hangs while it is measured (`open`,
// `probe_disk`) is given up at once: open then returns Timeout and leaves its files open for ever;
// so does close after such a probe_disk, each time. What the kernel may still write to is lost to
// the pool, so that pools and engine may go then.
//
// Thread: all calls from the compute thread, except seal and verify, which any thread may call for
// distinct blocks, and the sums, for any parts of blocks that nobody seals meanwhile. A read of a
// shard with writes in flight is a caller's error (see `writing`).
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
  std::uint64_t block_bytes = 0;  // multiple of 4096; 1 MiB, or a whole matrix
  std::uint32_t volume = 0;       // for Tier::Nvme: which of `volumes`
};

struct TierStoreOptions {
  std::vector<std::string> directories;  // one swap file each; may be empty without nvme shards
  /// Which directories a shard's bytes are divided over. Empty: each directory by itself.
  std::vector<std::vector<std::uint32_t>> volumes{};
  /// The disk of each directory, for dividing volumes. Empty: disks are measured if a volume has
  /// several directories.
  std::vector<PathDisk> disks{};
  std::uint64_t stripe_bytes = 1 << 20;  // the grain of that, cut to whole blocks
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
  /// Drains and removes the swap files. Errors: Io; Timeout, after which it may be asked again, and
  /// no file was touched: a hung file system would block that for ever.
  Result<void> close() noexcept;

  /// Reserves space for `shards`, all on nvme, which get the next ids, and for a shadow of each of
  /// `shadowed`. This space is optional, so it takes at most half of the free bytes. Errors: Io,
  /// NoSpace, after which nothing has changed.
  Result<void> grow(std::vector<ShardOptions> shards, std::span<const ShardId> shadowed) noexcept;
  /// How many shards there are: the next one's id.
  std::size_t size() const noexcept;

  const ShardOptions& shard(ShardId id) const noexcept;
  /// First byte of a device- or host-homed shard: [shard.bytes]. Not for nvme homes.
  std::byte* memory(ShardId id) noexcept;

  /// Starts moving `range` of an nvme-homed shard into `target` (size >= range.length). The
  /// transfer is the caller's; finish it with `wait`, and `verify` each block before use.
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
  /// Sleeps until none is, and leaves the completions to their owners, who get the outcomes, too.
  /// Errors: as wait.
  Result<void> finish_writes(ShardId id) noexcept;

  /// Records the checksum and next generation of block `block` whose bytes are at `data`.
  void seal(ShardId id, std::uint64_t block, const std::byte* data) noexcept;
  /// Errors: Corrupt, naming shard, block, file and offset.
  Result<void> verify(ShardId id, std::uint64_t block, const std::byte* data) noexcept;
  /// Parts of a block begin and end at multiples of this, or end with the block.
  static constexpr std::uint64_t checksum_piece_bytes = BlockChecksums::piece_bytes;
  /// seal and verify in parts: of bytes `part` of the block, which are at `data`. The sums of all
  /// parts of the block are added up (they wrap). They are 0 where `options.verify` leaves it out.
  std::uint64_t sum_to_seal(ShardId id, std::uint64_t block, ByteRange part,
                            const std::byte* data) const noexcept;
  std::uint64_t sum_to_verify(ShardId id, std::uint64_t block, ByteRange part,
                              const std::byte* data) const noexcept;
  void seal_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept;
  /// Errors: Corrupt, as verify.
  Result<void> verify_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept;
  /// Note [Shadows]. From here on seals and writes are of the shadow.
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

  /// Returns what the disks of `volumes[volume]` do together. Measures those that are not known,
  /// each in about half a second, or less, by writing and reading the start of its swap file; only
  /// before the first write. `staging` lends up to 16 MiB for a moment. {0, 0} where no shard uses
  /// a path. Errors: Exhausted, Io, NoSpace, Timeout.
  Result<DiskSpeed> probe_disk(std::uint32_t volume, pinned::Pool& staging) noexcept;
  /// The disk of each directory, as far as its speed is known.
  const std::vector<PathDisk>& disks() const noexcept;
  /// How much of `volumes[volume]` each directory of it carries.
  std::vector<PathShare> shares(std::uint32_t volume) const;

 private:
  class Impl;
  explicit TierStore(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace artesian::tiering
