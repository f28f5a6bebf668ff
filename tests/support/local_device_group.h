// LocalDeviceGroup: the devices of a LocalGroup's ranks, which are SeparateDevices: bytes pass from
// one's memory to the other's when the queue Bus of both has come to the operation. So a missing
// fence before it moves bytes that are not there yet.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_group.h"
#include "tests/support/local_group.h"
#include "tests/support/separate_device.h"

namespace artesian::test_support {

class LocalDeviceGroup final : public comm::DeviceGroup {
 public:
  LocalDeviceGroup(LocalGroup& group, SeparateDevice& device) : group_(group), device_(device) {}

  Result<void> enqueue_all_to_all(std::span<const std::span<const std::byte>> sent,
                                  std::span<const std::span<std::byte>> received,
                                  const comm::What& what) override {
    for (std::uint32_t peer = 0; peer < group_.ranks(); ++peer) {
      if (peer != group_.rank()) group_.count(what.kind, sent[peer].size());
    }
    if (fails) return make_error(ErrorCode::PeerLost, "made to fail");
    // Beside the numbers of the group's own operations.
    const std::uint64_t number = (std::uint64_t{1} << 40) + operations++;
    LocalRanks::Operation::Offer offer{
        what.text(), {sent.begin(), sent.end()}, {received.begin(), received.end()}};
    return device_.enqueue_on_bus(
        sent, received, [this, number, offer = std::move(offer)]() -> Result<void> {
          ARTESIAN_TRY(offered, group_.shared().offer(group_.rank(), number, offer));
          return group_.shared().take(group_.rank(), *offered);
        });
  }
  Result<void> check() override { return {}; }
  void abort() noexcept override {
    ++aborts;
    device_.drop_bus();
  }

  bool fails = false;  // what is enqueued, which then never begins
  std::uint64_t operations = 0;
  std::uint64_t aborts = 0;

 private:
  LocalGroup& group_;
  SeparateDevice& device_;
};

}  // namespace artesian::test_support
