// DeviceLoader: brings parameters from their homes into slots of a device whose memory the host
// cannot reach. A shard comes from
//
//   nvme     piece by piece: read into a pinned staging buffer, verified there, copied
//   host     copied straight out of its home
//   device   expanded from its home (with equal dtypes the home is the slot: nobody loads it)
//
// and is expanded on the device where it is stored in 16 bit and computed in fp32: then each piece
// goes through one buffer in device memory, which the order of the queue ToDevice protects. The
// host staging buffers are few and small (never as large as a unit), so reads proceed only as
// `advance` is called, by others or by itself whenever the host waits for the device; but `finish`
// advances one load without regard to others, so that what is fetched ahead never holds up a demand
// for longer than a piece takes.
//
// Thread: the compute thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/executor.h"
#include "tiering/device/device.h"
#include "tiering/pipeline.h"

namespace artesian::tiering {

/// One shard on its way into a slot. The caller's, in one place from start until finish or cancel.
struct DeviceLoad {
  ShardId shard{};
  DType stored = DType::Float32;
  DType computed = DType::Float32;
  std::uint64_t image = 0;      // elements
  std::byte* target = nullptr;  // [image] of the computed dtype, device memory
  aio::Priority priority = aio::Priority::Demand;

  // The loader's:
  std::uint64_t bytes_loaded = 0;  // copies of them have been enqueued
  std::optional<Error> failed;
  DeviceFence loaded;  // fence of the last copy
};

class DeviceLoader : private Pipeline<DeviceLoader> {
 public:
  struct Options {
    std::uint64_t staging_bytes = 0;    // of one host buffer; a multiple of every shard's blocks
    std::uint32_t staging_count = 0;    // 0: nothing is loaded from nvme
    std::uint64_t expansion_bytes = 0;  // size of the device buffer; 0: nothing is expanded
  };
  /// Takes its buffers from the two pools. All must outlive it. Errors: Exhausted.
  static Result<std::unique_ptr<DeviceLoader>> create(const Options& options, Device& device,
                                                      TierStore& store, Executor& executor,
                                                      pinned::Pool& device_pool,
                                                      pinned::Pool& host_pool);
  DeviceLoader(const DeviceLoader&) = delete;
  DeviceLoader& operator=(const DeviceLoader&) = delete;
  ~DeviceLoader();  // checks that no read is in flight

  /// Enqueues what needs no disk, and as many reads as there are free buffers. The target's earlier
  /// use must be ordered before the queue ToDevice. Errors: Io (the device).
  Result<void> start(DeviceLoad& load) noexcept;
  /// Returns once every copy is enqueued; `load.loaded` is then the fence to wait for.
  /// Errors: Io, Corrupt, Timeout; the load is to be cancelled then.
  Result<void> finish(DeviceLoad& load) noexcept;
  /// Forgets a load, after waiting for its reads in flight. Errors: Timeout, after which it may be
  /// asked again.
  Result<void> cancel(DeviceLoad& load) noexcept;
  /// Passes on what the disk has brought, and reads more into what has become free; waits for
  /// nothing. Errors of a load show when it is finished. Errors: Io (the device).
  Result<void> advance() noexcept;

  /// Copies elements [first, first + count) of the stored dtype from host memory to the same
  /// elements of a slot; the source belongs to the copy until the queue ToDevice has passed.
  Result<void> copy(const std::byte* source, DType stored, std::byte* target, DType computed,
                    std::uint64_t count) noexcept;
  Device& device() noexcept { return device_; }
  /// Lists the host memory through which bytes from nvme pass.
  std::vector<std::span<std::byte>> buffers() const { return ring_->buffers(); }

 private:
  class Turn;
  friend Pipeline<DeviceLoader>;
  using Pipeline::finish;
  friend Order;  // calls the port functions below; a task is a piece of a shard
  DeviceLoader(const Options& options, std::unique_ptr<StagingRing> ring, Device& device,
               TierStore& store, Executor& executor);
  static RingNeed need(const RingTask&) noexcept { return RingNeed::ToRead; }
  static bool writes() noexcept { return false; }
  Result<void> read(const RingTask& task, StagingItem& item) noexcept;
  Result<void> work(std::size_t, const RingTask& task, StagingItem* item) noexcept;

  std::uint64_t bytes_of(const DeviceLoad& load) const noexcept;
  bool complete(const DeviceLoad& load) const noexcept;
  DeviceLoad& load_of(const RingTask& task) const noexcept;
  ByteRange range_of(const RingTask& task) const noexcept;
  Result<void> verify(const RingTask& task, const std::byte* data) noexcept;
  Result<void> load_from_device(DeviceLoad& load) noexcept;

  const Options options_;
  Device& device_;
  TierStore& store_;
  Executor& executor_;
  std::unique_ptr<StagingRing> ring_;
  BufferLease expansion_;
  std::vector<DeviceLoad*> reading_;  // loads from nvme, each in the pass
  bool busy_ = false;                 // a call is under way
};

}  // namespace artesian::tiering
