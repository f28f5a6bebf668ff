// Device: a device backend. The device tier is one arena of its memory; the device itself copies
// bytes between the arena and host memory, in the order of its queues:
//
//   Compute   what the model computes (on CUDA: LibTorch's current stream), and kernels on state
//   ToDevice  copies from host memory, and kernels on what they bring
//   ToHost    copies to host memory
//   Bus       copies between the devices of several ranks (comm/device_group.h), and kernels on
//             what is sent and received
//
// Work in a queue runs in the order in which it was enqueued. Only fences order work of different
// queues: `record` marks a place in a queue, `wait` holds another queue back until the first has
// passed that place, and `finish` holds the caller back. Calls that enqueue do not wait. Memory
// that an enqueued copy or kernel uses belongs to it until its queue has passed it; reusing the
// memory or reading a target sooner gives wrong bytes on a real device.
// tests/support/separate_device.h is a device without a GPU that reveals such mistakes.
//
// A device whose memory is host-accessible (HostDevice) is used in place: callers alias and write
// its memory directly, and need no copies.
//
// Thread: one, the compute thread. Any later call may return the error (Io) of an enqueued
// operation, as the device has failed then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "base/result.h"
#include "kernels/gradient.h"
#include "kernels/update.h"
#include "pinned/pool.h"

namespace artesian::tiering {

enum class Queue : std::uint8_t { Compute, ToDevice, ToHost, Bus };
constexpr std::size_t queue_count = 4;

/// A place in a queue, after everything enqueued so far. The default fence has always passed.
struct DeviceFence {
  Queue queue = Queue::Compute;
  std::uint64_t sequence = 0;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// "cpu", "cuda:0".
  virtual std::string name() const = 0;
  /// True if this process may read and write the arena like other memory.
  virtual bool host_accessible() const noexcept = 0;
  /// The NUMA node that the device is attached to, if it is known and the device has memory of its
  /// own.
  virtual std::optional<std::uint32_t> numa_node() const { return std::nullopt; }

  /// The device tier's memory, `bytes` rounded up to 4096, as a pool; the device must outlive it.
  /// Errors: Exhausted, whose message names artesian.device_memory, the requested and the free
  /// bytes.
  virtual Result<std::unique_ptr<pinned::Pool>> create_arena(std::uint64_t bytes) = 0;
  /// Page-locks host memory for the device, so that its copies run asynchronously; memory that is
  /// locked already is left as it is. Unregister the range before it is unmapped, also after an
  /// error, which may leave a part of it locked. Errors: Io, Exhausted; copies of memory that is
  /// not locked work, but the caller waits for them.
  virtual Result<void> register_host(std::span<std::byte> range) = 0;
  /// Undoes register_host for everything within the range; no registered piece may reach beyond it.
  virtual void unregister_host(std::span<std::byte> range) noexcept = 0;

  /// Copy in the queue of that name. Errors: Io.
  virtual Result<void> copy_to_device(std::byte* target, const std::byte* source,
                                      std::uint64_t bytes) = 0;
  virtual Result<void> copy_to_host(std::byte* target, const std::byte* source,
                                    std::uint64_t bytes) = 0;

  /// Copies within device memory. Errors: Io.
  virtual Result<void> copy_within(Queue queue, std::byte* target, const std::byte* source,
                                   std::uint64_t bytes) = 0;

  /// Kernels on device memory, with the same bits as those of this name in kernels/. Errors: Io.
  virtual Result<void> zero(Queue queue, std::byte* target, std::uint64_t bytes) = 0;
  virtual Result<void> expand(Queue queue, const std::byte* source, DType source_dtype,
                              float* target, std::uint64_t count) = 0;
  /// Of all pieces, whose accumulators do not overlap.
  virtual Result<void> accumulate_gradients(Queue queue,
                                            std::span<const kernels::GradientPiece> pieces,
                                            const kernels::GradientDtypes& dtypes) = 0;
  /// leaf_sums: device memory.
  virtual Result<void> sum_squares(Queue queue, const std::byte* data, DType dtype,
                                   std::uint64_t count, double* leaf_sums) = 0;
  /// Updates pieces of the same dtypes, all with whole or all with split master weights. They must
  /// not overlap.
  virtual Result<void> update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                                    const kernels::UpdateStep& step) = 0;

  /// Returns a fence at the present end of a queue.
  virtual Result<DeviceFence> record(Queue queue) = 0;
  /// Makes work enqueued in `queue` from here on wait for the fence.
  virtual Result<void> wait(Queue queue, DeviceFence fence) = 0;
  /// True if the fence has passed, or if the device has failed; finish() then reports the failure.
  virtual bool ready(DeviceFence fence) noexcept = 0;
  /// Waits for the fence. Errors: Timeout, after wait_seconds; Io.
  virtual Result<void> finish(DeviceFence fence) noexcept = 0;

  /// Called around computing in the queue Compute that is not enqueued here (LibTorch): the model's
  /// tensors may be accessed only between the two calls.
  virtual void begin_compute() noexcept {}
  virtual void end_compute() noexcept {}

  /// Makes all work enqueued from here on, in any queue, wait for all that was enqueued before. Bus
  /// is left out, as what it moves is waited for where it is used.
  Result<void> join_queues();
  /// Waits until all queues have finished their enqueued work.
  Result<void> finish_all() noexcept;

  /// Deadline of every wait of the host.
  void set_wait_seconds(double seconds) noexcept {
    ARTESIAN_CHECK(seconds >= 0.0, seconds);
    wait_seconds_ = seconds;
  }
  double wait_seconds() const noexcept { return wait_seconds_; }
  /// Sets a function that finish() calls repeatedly while it waits, except for waits made by the
  /// function itself. The function may enqueue but must not wait; its errors must be reported
  /// elsewhere. Null: none.
  void set_meanwhile(std::function<void()> work) noexcept { meanwhile_ = std::move(work); }
  /// Bytes given to the two copies since creation.
  std::uint64_t bytes_to_device() const noexcept { return bytes_to_device_; }
  std::uint64_t bytes_to_host() const noexcept { return bytes_to_host_; }

 protected:
  /// Check an enqueued operation, for any device: its memory exists and is aligned to its elements,
  /// and the source and target of a copy do not overlap.
  static void check_copy(const std::byte* target, const std::byte* source,
                         std::uint64_t bytes) noexcept;
  static void check_expand(const std::byte* source, DType source_dtype,
                           const float* target) noexcept;
  static void check_gradients(std::span<const kernels::GradientPiece> pieces,
                              const kernels::GradientDtypes& dtypes) noexcept;
  static void check_squares(const std::byte* data, DType dtype, const double* leaf_sums) noexcept;
  static void check_update(std::span<const kernels::AdamPiece> pieces,
                           const kernels::UpdateStep& step) noexcept;

  /// Called by finish() while it waits.
  void work_meanwhile() noexcept;

  std::uint64_t bytes_to_device_ = 0;
  std::uint64_t bytes_to_host_ = 0;
  bool joining_ = false;  // inside join_queues

 private:
  double wait_seconds_ = 60.0;
  std::function<void()> meanwhile_;
  bool works_meanwhile_ = false;
};

/// begin_compute to end_compute.
class ComputeScope {
 public:
  explicit ComputeScope(Device& device) noexcept : device_(device) { device_.begin_compute(); }
  ~ComputeScope() { device_.end_compute(); }
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

 private:
  Device& device_;
};

}  // namespace artesian::tiering
