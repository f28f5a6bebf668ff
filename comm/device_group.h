// DeviceGroup: what a Group does for host memory, for the memories of the ranks' devices. Each rank
// has a device of its own, whose queue Bus (tiering/device/device.h) runs the operations in the
// order in which they are enqueued.
//
// Messages have no names here: if ranks enqueue different operations, or one of them none, the
// others wait. So ranks first meet in the Group, where a rank that is gone, or elsewhere, is an
// error.
//
// Thread: one at a time. After an error nothing but abort() may be called.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "comm/group.h"

namespace artesian::comm {

class DeviceGroup {
 public:
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  virtual ~DeviceGroup() = default;

  /// As Group::all_to_all, of device memory: enqueues it and returns. The memory belongs to the
  /// operation until the queue has passed it. Errors: PeerLost.
  virtual Result<void> enqueue_all_to_all(std::span<const std::span<const std::byte>> sent,
                                          std::span<const std::span<std::byte>> received,
                                          const What& what) = 0;
  /// Returns the error of an enqueued operation, if one is known. Errors: PeerLost.
  virtual Result<void> check() = 0;
  /// Ends what is enqueued and waits for other ranks: the queue passes it, whatever the memory that
  /// it would have filled then holds.
  virtual void abort() noexcept = 0;
};

}  // namespace artesian::comm
