#include "tiering/device/device.h"

#include <array>

namespace artesian::tiering {
namespace {

constexpr std::array<Queue, queue_count> queues{Queue::Compute, Queue::ToDevice, Queue::ToHost};

}  // namespace

Result<void> Device::join_queues() {
  std::array<DeviceFence, queue_count> ends;
  for (std::size_t index = 0; index < queue_count; ++index) {
    ARTESIAN_TRY(end, record(queues[index]));
    ends[index] = end;
  }
  Result<void> joined;
  joining_ = true;
  for (const Queue queue : queues) {
    for (const DeviceFence& end : ends) {
      if (joined.has_value() && end.queue != queue) joined = wait(queue, end);
    }
  }
  joining_ = false;
  return joined;
}

Result<void> Device::finish_all() noexcept {
  for (const Queue queue : queues) {
    ARTESIAN_TRY(end, record(queue));
    ARTESIAN_TRY_VOID(finish(end));
  }
  return {};
}

}  // namespace artesian::tiering
