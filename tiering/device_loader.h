// DeviceLoader: brings parameters from their homes into slots of a device whose memory the host
// cannot reach. A shard comes from
//
//   nvme     piece by piece: read into a pinned staging buffer, verified there, copied
//   host     copied straight out of its home
//   device   expanded or copied from its home (if the home is not the slot itself)
//
// A shard stored in 16 bit and computed in fp32 is expanded on the device: each piece passes
// through one buffer in device memory, which is protected by the order of the queue ToDevice. The
// host staging buffers are few and small (never as large as a unit), so reads proceed only when
// `advance` is called, by callers or whenever the host waits for the device. `finish` advances one
// load before all others, so that prefetching delays a demand by at most the time of one piece.
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

/// One shard on its way into a slot. The caller owns it and must not move it from start until
/// finish or cancel.
struct DeviceLoad {
  ShardId shard{};
  DType stored = DType::Float32;
  DType computed = DType::Float32;
  std::uint64_t image = 0;      // elements
  std::byte* target = nullptr;  // [image] of the computed dtype, device memory
  aio::Priority priority = aio::Priority::Demand;

  // The members below belong to the loader.
  std::uint64_t bytes_loaded = 0;  // bytes whose copies have been enqueued
  std::optional<Error> failed;
  DeviceFence loaded;  // fence of the last copy
};

class DeviceLoader : private Pipeline<DeviceLoader> {
 public:
  struct Options {
    std::uint64_t staging_bytes = 0;  // size of one host buffer; a multiple of every shard's blocks
    std::uint32_t staging_count = 0;  // 0 if nothing is loaded from nvme
    std::uint64_t expansion_bytes = 0;  // size of the device buffer; 0 if nothing is expanded
  };
  /// Takes its buffers from the two pools. All must outlive it. Errors: Exhausted.
  static Result<std::unique_ptr<DeviceLoader>> create(const Options& options, Device& device,
                                                      TierStore& store, Executor& executor,
                                                      pinned::Pool& device_pool,
                                                      pinned::Pool& host_pool);
  DeviceLoader(const DeviceLoader&) = delete;
  DeviceLoader& operator=(const DeviceLoader&) = delete;
  ~DeviceLoader();  // checks that no read is in flight

  /// Enqueues copies that need no disk, and starts as many reads as there are free buffers. The
  /// target's earlier use must be ordered before the queue ToDevice. Errors: Io (the device).
  Result<void> start(DeviceLoad& load) noexcept;
  /// Returns once every copy is enqueued; `load.loaded` is then the fence to wait for. Errors: Io,
  /// Corrupt, Timeout; the caller must then cancel the load.
  Result<void> finish(DeviceLoad& load) noexcept;
  /// Forgets a load, after waiting for its reads in flight. Errors: Timeout, after which it may be
  /// called again.
  Result<void> cancel(DeviceLoad& load) noexcept;
  /// Enqueues copies of pieces that have been read, and starts reads into buffers that have become
  /// free; does not wait. Errors of a load are returned by its finish. Errors: Io (the device).
  Result<void> advance() noexcept;

  /// Copies elements [first, first + count) of the stored dtype from host memory to the same
  /// elements of a slot; the source must stay unchanged until the queue ToDevice has passed the
  /// copy.
  Result<void> copy(const std::byte* source, DType stored, std::byte* target, DType computed,
                    std::uint64_t count) noexcept;
  /// Expands elements in place: `stored` ones that end where `target`, [count] of fp32, ends.
  Result<void> expand_in_place(std::byte* target, DType stored, std::uint64_t count) noexcept;
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
  std::vector<DeviceLoad*> reading_;  // loads from nvme whose tasks are in the pass
  bool busy_ = false;                 // a call is under way
};

}  // namespace artesian::tiering
