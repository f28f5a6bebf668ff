// SnapshotFile: one preallocated file that is written block by block, in any order, with direct
// I/O, by an engine of its own, with a checksum for each block. It knows nothing of the bytes'
// meaning.
//
// Note [A snapshot's faults stay in it]: a training run that writes a snapshot must not end, or
// wait for long, because the place of its checkpoints is full, broken or gone. So write() returns
// no error: the first fault is recorded, later writes are dropped, and their buffers are returned
// at once. If the disk does not answer, and no transfer ends for `stall_seconds`, all transfers in
// flight are abandoned: their buffers are lost until the process ends (base/buffer.h, Note
// [Abandoned memory]), and so are the engine and the open file.
//
// Thread: one at a time; `sum` and `set_sum` from any thread, for distinct blocks. sync() may block
// for ever; everything else waits at most `stall_seconds` without an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aio/engine.h"
#include "base/buffer.h"
#include "base/file_system.h"
#include "base/result.h"
#include "tiering/byte_range.h"
#include "tiering/snapshot_block.h"

namespace artesian::tiering {

/// Ties the checksum of a block to its place and its snapshot.
struct SnapshotSeed {
  std::uint64_t checkpoint = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;

  bool operator==(const SnapshotSeed&) const = default;
  std::uint64_t of_block(std::uint64_t block) const noexcept;
};

using MakeSnapshotEngine = std::function<Result<std::unique_ptr<aio::Engine>>()>;

struct SnapshotFileOptions {
  SnapshotSeed seed;
  double stall_seconds = 10.0;
  /// Null: the best engine, with four transfers in the kernel, so that it never fills the disk's
  /// queue in which reads for training wait.
  MakeSnapshotEngine make_engine = nullptr;
};

class SnapshotFile {
 public:
  static constexpr std::uint32_t writes_max = 64;  // blocks in flight or waiting for the engine

  /// Takes the open file, in which space for all blocks must be reserved. Blocks are contiguous and
  /// follow a head. Errors: those of making the engine.
  static Result<std::unique_ptr<SnapshotFile>> create(std::unique_ptr<File> file,
                                                      std::vector<SnapshotBlock> blocks,
                                                      SnapshotFileOptions options) noexcept;
  ~SnapshotFile();
  SnapshotFile(const SnapshotFile&) = delete;
  SnapshotFile& operator=(const SnapshotFile&) = delete;

  std::uint64_t bytes_written() const noexcept { return bytes_written_; }

  /// Returns the sum of the pieces in `part` of a block, whose bytes are at `data`; `part` begins
  /// at a multiple of BlockChecksums::piece_bytes, and ends at one or with the block. The caller
  /// adds up the sums of all parts (they wrap) for set_sum.
  std::uint64_t sum(std::uint64_t block, ByteRange part, const std::byte* data) const noexcept;
  void set_sum(std::uint64_t block, std::uint64_t sum) noexcept { sums_[block] = sum; }

  /// Starts to write a block, which begins at the start of `bytes` and whose sum is set. Waits if
  /// writes_max blocks or this block are in flight. A later call returns the buffer.
  void write(std::uint64_t block, BufferLease bytes) noexcept;
  /// Marks a block as not yet written, as its bytes were not those of the snapshot.
  void forget(std::uint64_t block) noexcept;
  bool has(std::uint64_t block) const noexcept { return has_[block] != 0; }
  /// Bytes of the blocks given so far, and of all blocks.
  std::uint64_t bytes_given() const noexcept { return bytes_given_; }
  std::uint64_t bytes_of_blocks() const noexcept;

  /// Returns the buffers of writes that have ended.
  void reap() noexcept;
  std::uint32_t in_flight() const noexcept { return in_flight_; }
  /// Waits until one transfer in flight has ended; if none ends within stall_seconds, abandons all
  /// of them. At least one must be in flight.
  void wait_for_one() noexcept;
  /// Waits for all transfers. Errors: the first fault of any write so far.
  Result<void> finish() noexcept;
  /// Returns the first fault so far, or null.
  const Error* fault() const noexcept { return failed_ ? &fault_ : nullptr; }
  /// Marks the snapshot as failed for an outside fault, and drops all later
  /// writes.
  void fail(Error error) noexcept;

  /// Writes the head, exactly up to the first block, and makes all bytes durable. Every block must
  /// have been written. After finish(); on any thread, which may hang. Errors: Io, NoSpace.
  Result<void> sync(std::string_view head) noexcept;
  /// The bytes of the file with the sums: tiering/snapshot_sums.h.
  std::string sums_text() const;

 private:
  struct Slot {
    aio::Completion completion;
    std::uint64_t block = 0;
    bool used = false;
  };
  /// Everything that the kernel may still use. Kept for ever after a stall.
  struct Transfers {
    std::unique_ptr<File> file;
    std::unique_ptr<aio::Engine> engine;  // destroyed before the slots in use, which are checked
    std::vector<std::unique_ptr<Slot>> slots;
  };

  SnapshotFile(std::vector<SnapshotBlock> blocks, SnapshotFileOptions options) noexcept;
  Slot* free_slot() noexcept;
  Slot* slot_of(std::uint64_t block) noexcept;
  Slot* any_used() noexcept;
  void give_up(Error cause) noexcept;

  const std::vector<SnapshotBlock> blocks_;
  const SnapshotFileOptions options_;
  std::unique_ptr<Transfers> transfers_;
  std::vector<std::uint64_t> sums_;  // one for each block
  std::vector<std::uint8_t> has_;    // whether a block has its sum; one byte each
  std::uint32_t in_flight_ = 0;
  std::uint64_t bytes_given_ = 0;
  std::uint64_t bytes_written_ = 0;
  bool failed_ = false;
  Error fault_;
};

}  // namespace artesian::tiering
