// SimulatedDevice: the device tier on the simulated accelerator. Its arena is memory of the same
// device, and its queues stand beside PyTorch's streams; Compute is the stream that is current when
// it is made. So copies and PyTorch's kernels run late, in one order that fences make and races
// show.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/simulated_accelerator/accelerator.h"
#include "tiering/device/host_device.h"

namespace artesian::test_support {

class SimulatedDevice final : public tiering::Device {
 public:
  using Queue = tiering::Queue;
  using DeviceFence = tiering::DeviceFence;
  /// `compute`: the queue of the stream that the model computes on.
  SimulatedDevice(c10::DeviceIndex index, std::size_t compute);
  ~SimulatedDevice() override;

  std::string name() const override { return "sim:" + std::to_string(int{index_}); }
  bool host_accessible() const noexcept override { return false; }
  Result<std::unique_ptr<pinned::Pool>> create_arena(std::uint64_t bytes) override;
  Result<void> register_host(std::span<std::byte>) override { return {}; }
  void unregister_host(std::span<std::byte>) noexcept override {}
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
  /// For a double of a comm::DeviceGroup: work in the queue Bus; and where work finds memory.
  Result<void> enqueue_on_bus(std::vector<Range> ranges, LateQueues::Work work) {
    return enqueue(Queue::Bus, "a copy between devices", std::move(ranges), std::move(work));
  }
  template <typename T>
  static T* for_kernels(T* at) {
    return accelerator().memory.for_kernels(at);
  }
  Result<DeviceFence> record(Queue queue) override;
  Result<void> wait(Queue queue, DeviceFence fence) override;
  bool ready(DeviceFence fence) noexcept override;
  Result<void> finish(DeviceFence fence) noexcept override;

 private:
  using Marks = std::map<std::uint64_t, LateQueues::Mark>;
  std::size_t number(Queue queue) const { return queues_[static_cast<std::size_t>(queue)]; }
  LateQueues::Mark mark_of(DeviceFence fence);
  Result<void> enqueue(Queue queue, const char* what, std::vector<Range> ranges,
                       LateQueues::Work work);

  const c10::DeviceIndex index_;
  std::array<std::size_t, tiering::queue_count> queues_{};
  std::mutex mutex_;
  std::array<Marks, tiering::queue_count> marks_;
  bool has_arena_ = false;
  std::shared_ptr<tiering::HostDevice> kernels_ = std::make_shared<tiering::HostDevice>();
};

}  // namespace artesian::test_support
