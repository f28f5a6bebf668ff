// Depot: stores byte arrays in a tier until they are needed again, in an order that is known by
// then. It holds what forward keeps for backward. Each array has a shard of the tier store. In host
// memory one copy stores it and one copy takes it back. On nvme it passes, block by block, through
// a pipeline of page-locked buffers, sealed when written and verified when read. Writes run behind
// the caller and reads ahead of it, as far as there are buffers.
//
// On a device whose memory the host cannot reach, `put` copies in the queue ToHost and `take` in
// the queue ToDevice. The caller must keep the source and leave the target alone until the returned
// fence has passed. It must wait for all puts of a pass before `expect`, and `written` of the next
// pass must come after all takes, so copies to and from a shard need no order of their own.
//
// Nothing is put between `expect` and `forget`. After an error only `finish` may be called. Thread:
// the compute thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/executor.h"
#include "tiering/device/device.h"
#include "tiering/pipeline.h"
#include "tiering/tier_store.h"

namespace artesian::tiering {

class Depot : private Pipeline<Depot> {
 public:
  struct Options {
    std::uint64_t buffer_bytes = 0;  // at least the largest block of any shard on nvme
    std::uint32_t buffer_count = 0;  // 0 if no shard is on nvme
  };
  struct Stored {
    ShardId shard{};
    std::uint64_t bytes = 0;
  };

  /// Takes its buffers from the pool. The pool, store and device must outlive it. Errors:
  /// Exhausted.
  static Result<std::unique_ptr<Depot>> create(const Options& options, TierStore& store,
                                               pinned::Pool& host, Device& device,
                                               Executor& executor);

  /// Stores `source` in its shard, which is at least as long. On a separate device `source` must be
  /// complete once `written` has passed, and may be reused once the returned fence has passed.
  /// Errors: Io, NoSpace, Timeout, also of earlier puts.
  Result<DeviceFence> put(ShardId shard, std::span<const std::byte> source,
                          DeviceFence written) noexcept;
  /// Declares the order in which the stored arrays will be taken, some of which may be skipped, and
  /// begins to read. Errors: Io, NoSpace, Timeout.
  Result<void> expect(const std::vector<Stored>& order) noexcept;
  /// Takes the shard's bytes into `target`. On a separate device, `target` is written once `free`
  /// has passed, and complete once the returned fence has passed. Errors: Io, Corrupt, Timeout,
  /// which name the shard.
  Result<DeviceFence> take(ShardId shard, std::span<std::byte> target, DeviceFence free) noexcept;
  /// Ends the taking: nothing more will be taken. Errors: Io, Timeout.
  Result<void> forget() noexcept;
  /// Waits for all transfers. Errors: the first one's.
  Result<void> finish() noexcept { return drain(); }

  /// Lists the host memory of the buffers for blocks on their way to or from nvme.
  std::vector<std::span<std::byte>> buffers() const { return ring_->buffers(); }
  /// Bytes copied by the CPU itself, if the device is host-accessible.
  std::uint64_t bytes_put() const noexcept { return bytes_put_; }
  std::uint64_t bytes_taken() const noexcept { return bytes_taken_; }
  using Pipeline::wait_seconds;

 private:
  friend Pipeline<Depot>;
  using Pipeline::finish;
  friend Order;  // calls the port functions below; a task is one block of a shard
                 // index
  Depot(std::unique_ptr<StagingRing> ring, TierStore& store, Device& device, Executor& executor)
      : Pipeline(*ring, "kept inputs"),
        store_(store),
        device_(device),
        executor_(executor),
        ring_(std::move(ring)) {}
  /// Blocks that the host copies are put by tasks that only write; blocks that a device copies are
  /// put by tasks that read.
  RingNeed need(const RingTask&) const noexcept {
    return puts_ && !separate() ? RingNeed::ToWrite : RingNeed::ToRead;
  }
  bool writes() const noexcept { return puts_; }
  Result<void> read(const RingTask& task, StagingItem& item) noexcept;
  Result<void> work(std::size_t, const RingTask& task, StagingItem* item) noexcept;

  std::vector<RingTask> blocks_of(ShardId shard, std::uint64_t bytes) const;
  ByteRange range_of(const RingTask& block) const noexcept;
  bool separate() const noexcept { return !device_.host_accessible(); }
  void copy(std::byte* target, const std::byte* source, std::uint64_t bytes) noexcept;
  Result<void> put_on_nvme(ShardId shard, std::span<const std::byte> source) noexcept;
  std::uint64_t begin_to_put(const RingTask& block, StagingItem& item) const noexcept;
  Result<void> take_from_nvme(ShardId shard, std::span<std::byte> target,
                              DeviceFence free) noexcept;

  TierStore& store_;
  Device& device_;
  Executor& executor_;
  std::unique_ptr<StagingRing> ring_;
  bool puts_ = true;                     // whether this pass puts arrays; otherwise it takes them
  std::span<const std::byte> source_{};  // bytes of the shard being put
  std::span<std::byte> target_{};        // bytes of the shard being taken
  std::uint64_t bytes_put_ = 0;
  std::uint64_t bytes_taken_ = 0;
};

}  // namespace artesian::tiering
