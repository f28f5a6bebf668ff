// Bus: moves bytes between the ranks' devices, in the queue of that name. The host waits until the
// bytes have arrived, so that no later work need be ordered after them, and so that a rank that is
// gone is noticed where it is missed. Other queues go on meanwhile.
//
// Thread: the compute thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device_group.h"
#include "comm/group.h"
#include "tiering/device/device.h"

namespace artesian::zero3 {

class Bus {
 public:
  /// All must outlive it.
  Bus(comm::Group& group, comm::DeviceGroup& devices, tiering::Device& device) noexcept
      : group_(group), devices_(devices), device_(device) {}

  /// As comm::Group::all_to_all, of device memory. The queue Bus must be behind what writes `sent`
  /// and whatever uses `received`, and the ranks must have met in the group, about this operation.
  /// Errors: PeerLost, Io; behind them nothing is enqueued that waits for another rank.
  Result<void> all_to_all(std::span<const std::span<const std::byte>> sent,
                          std::span<const std::span<std::byte>> received, const comm::What& what);
  /// The same of an image with an equal share for each rank, of which this rank's is there. Ranks
  /// meet here. `unit`: compared between the ranks.
  Result<void> all_gather(std::span<std::byte> image, std::uint32_t unit, const comm::What& what);

  tiering::Device& device() noexcept { return device_; }

 private:
  Result<void> move(std::span<const std::span<const std::byte>> sent,
                    std::span<const std::span<std::byte>> received, const comm::What& what);
  Result<void> wait(tiering::DeviceFence end, const comm::What& what);

  comm::Group& group_;
  comm::DeviceGroup& devices_;
  tiering::Device& device_;
};

}  // namespace artesian::zero3
