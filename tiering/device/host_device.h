// HostDevice: the device tier in RAM, for computing on the CPU. Each call does its work before it
// returns, so all fences have passed.
#pragma once

#include "tiering/device/device.h"

namespace artesian::tiering {

class HostDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool host_accessible() const noexcept override { return true; }

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
  Result<DeviceFence> record(Queue queue) override { return DeviceFence{queue, 0}; }
  Result<void> wait(Queue, DeviceFence) override { return {}; }
  bool ready(DeviceFence) noexcept override { return true; }
  Result<void> finish(DeviceFence) noexcept override { return {}; }
};

/// The process's only HostDevice: it has no state but its counters.
HostDevice& host_device();

}  // namespace artesian::tiering
