// CudaDevice: the device tier in a GPU's memory. One cudaMalloc holds the arena, beside LibTorch's
// allocator. Compute is the caller's stream (LibTorch's current one). The other queues are streams
// of their own, so that both directions of the bus and the kernels run at the same time. Fences are
// events, few of them, reused once they have passed.
//
// Host memory is page-locked in pieces, because one call for 512 GiB fails on some drivers, and
// others refuse less. CUDA cannot copy a range that spans two pieces, so copies are cut at their
// boundaries. It also refuses to page-lock memory twice, so ranges within existing pieces are
// skipped.
//
// Functions that free memory (the destructor, the arena's destructor, unregister_host) first wait
// until the device is idle. If it does not answer within wait_seconds, the memory is kept until the
// process ends: the device may still write there, and cudaFree might wait for it without end.
//
// Plain C++: needs the CUDA toolkit, not nvcc. Built only where there is one.
#pragma once

#include <driver_types.h>

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "tiering/device/device.h"

namespace artesian::tiering {

class CudaDevice final : public Device {
 public:
  /// Checks that GPU `index` can be used. Errors: Unsupported: no driver or GPU, or one that is too
  /// old; Invalid: no such index. All messages say what to do.
  static Result<void> check(int index);
  /// Free bytes of the GPU's memory. Errors: as check; Io.
  static Result<std::uint64_t> free_memory(int index);
  /// `compute` must outlive the device; it may be the default stream. Errors: as check; Io.
  static Result<std::unique_ptr<CudaDevice>> open(int index, cudaStream_t compute);
  ~CudaDevice() override;

  std::string name() const override { return "cuda:" + std::to_string(index_); }
  bool host_accessible() const noexcept override { return false; }
  std::optional<std::uint32_t> numa_node() const override;
  /// Its address on the PCI bus: "0000:01:00.0"; empty if CUDA does not tell.
  std::string address() const;
  /// The stream of the queue Bus.
  cudaStream_t bus() noexcept { return stream(Queue::Bus); }

  Result<std::unique_ptr<pinned::Pool>> create_arena(std::uint64_t bytes) override;
  Result<void> register_host(std::span<std::byte> range) override;
  void unregister_host(std::span<std::byte> range) noexcept override;
  static constexpr std::uint64_t registered_piece_bytes = std::uint64_t{16} << 30;
  Result<void> copy_to_device(std::byte* target, const std::byte* source,
                              std::uint64_t bytes) override;
  Result<void> copy_to_host(std::byte* target, const std::byte* source,
                            std::uint64_t bytes) override;
  Result<void> copy_within(Queue queue, std::byte* target, const std::byte* source,
                           std::uint64_t bytes) override;
  Result<void> zero(Queue queue, std::byte* target, std::uint64_t bytes) override;
  Result<void> expand(Queue queue, const std::byte* source, DType source_dtype, float* target,
                      std::uint64_t count) override;
  Result<void> accumulate_gradients(Queue queue, std::span<const kernels::GradientPiece> pieces,
                                    const kernels::GradientDtypes& dtypes) override;
  Result<void> sum_squares(Queue queue, const std::byte* data, DType dtype, std::uint64_t count,
                           double* leaf_sums) override;
  Result<void> update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                            const kernels::UpdateStep& step) override;
  Result<DeviceFence> record(Queue queue) override;
  Result<void> wait(Queue queue, DeviceFence fence) override;
  bool ready(DeviceFence fence) noexcept override;
  Result<void> finish(DeviceFence fence) noexcept override;
  void begin_compute() noexcept override { static_cast<void>(select().has_value()); }

 private:
  struct Recorded {
    std::uint64_t sequence;
    cudaEvent_t event;
    std::uint64_t recorded_ns;
  };
  struct QueueState {  // state of one queue
    cudaStream_t stream = nullptr;
    std::uint64_t recorded = 0;    // sequence of the last fence
    std::uint64_t passed = 0;      // number of the last fence known to have passed
    std::deque<Recorded> pending;  // fences recorded after `passed`
  };
  explicit CudaDevice(int index) noexcept : index_(index) {}
  QueueState& queue_state(Queue queue) noexcept {
    const auto index = static_cast<std::size_t>(queue);
    ARTESIAN_CHECK(index < queues_.size(), index);
    return queues_[index];
  }
  cudaStream_t stream(Queue queue) noexcept { return queue_state(queue).stream; }
  Result<void> select() const;
  Result<void> enqueue_copy(Queue queue, cudaMemcpyKind kind, std::byte* target,
                            const std::byte* source, std::uint64_t bytes);
  std::uint64_t bytes_in_one_piece(const std::byte* host, std::uint64_t bytes) const noexcept;
  std::uint64_t bytes_registered(std::span<const std::byte> range) const noexcept;
  Result<void> register_piece(std::span<std::byte> piece);
  Result<cudaEvent_t> take_event();
  bool settle(QueueState& state) noexcept;
  const Recorded* find(DeviceFence fence) noexcept;
  std::string describe_pending();
  Result<void> done(cudaError_t status, const char* doing) const;
  Result<void> launched(Result<void> outcome) const;
  Error explained(Error error, cudaError_t status) const;
  Error out_of_memory(std::uint64_t bytes, std::uint64_t free, std::uint64_t total) const;
  bool idle() noexcept;

  const int index_;
  std::array<QueueState, queue_count> queues_;
  std::vector<cudaEvent_t> free_events_;
  std::vector<std::span<std::byte>> registered_;  // pieces of host memory, by address
  std::uint32_t* not_finite_ = nullptr;           // flag of kernels that met an inf or NaN
  cudaError_t failure_ = cudaSuccess;             // first error of an event: all later calls fail
  bool silent_ = false;                           // the last wait reached its deadline
};

}  // namespace artesian::tiering
