// Depot: byte arrays that wait in a tier until they are wanted back, in an order that is known by
// then: what forward keeps for backward. Each has a shard of the tier store as its place: in host
// memory one copy puts it there and one takes it back; on nvme it passes, block by block, through a
// pipeline of page-locked buffers, sealed when it is written and verified when it is read. Writes
// go behind the caller's back, reads ahead of it: as far as there are buffers.
//
// With a device whose memory the host cannot reach, what is put is copied in the queue ToHost and
// what is taken in the queue ToDevice; the caller holds the source, and leaves the target alone,
// until the fence that it is given has passed.
//
// Nothing is put between `expect` and `forget`. After an error everything but `finish` is over.
// Thread: the compute thread only.
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
    std::uint32_t buffer_count = 0;  // 0: no shard is on nvme
  };
  struct Stored {
    ShardId shard{};
    std::uint64_t bytes = 0;
  };

  /// Takes its buffers from the pool. All must outlive it. Errors: Exhausted.
  static Result<std::unique_ptr<Depot>> create(const Options& options, TierStore& store,
                                               pinned::Pool& host, Device& device,
                                               Executor& executor);

  /// Puts `source` into its shard, which is at least as long; on a separate device `source` is
  /// complete once `written` has passed, and unused once the returned fence has. Errors: Io,
  /// NoSpace, Timeout, also of earlier puts.
  Result<DeviceFence> put(ShardId shard, std::span<const std::byte> source,
                          DeviceFence written) noexcept;
  /// All that was put will be taken in this order, of which some may be left out; begins to read.
  /// Errors: Io, NoSpace, Timeout.
  Result<void> expect(const std::vector<Stored>& order) noexcept;
  /// Takes the shard's bytes into `target`. On a separate device, `target` is written to once
  /// `free` has passed, and complete once the returned fence has. Errors: Io, Corrupt, Timeout,
  /// which name the shard.
  Result<DeviceFence> take(ShardId shard, std::span<std::byte> target, DeviceFence free) noexcept;
  /// Nothing more will be taken. Errors: Io, Timeout.
  Result<void> forget() noexcept;
  /// Waits for all transfers. Errors: the first one's.
  Result<void> finish() noexcept { return drain(); }

  /// Lists the host memory that blocks on their way to or from nvme pass through.
  std::vector<std::span<std::byte>> buffers() const { return ring_->buffers(); }
  /// Bytes that the CPU itself has copied, where the device is host-accessible.
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
  /// What the host copies is put by tasks that only write, what a device does by such that read.
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
  bool puts_ = true;                     // whether this pass puts; otherwise it takes
  std::span<const std::byte> source_{};  // bytes of the shard being put
  std::span<std::byte> target_{};        // bytes of the shard being taken
  DeviceFence last_put_;                 // of host homes: the last copy into one
  DeviceFence last_taken_;               // of host homes: the last copy out of one
  std::uint64_t bytes_put_ = 0;
  std::uint64_t bytes_taken_ = 0;
};

}  // namespace artesian::tiering
