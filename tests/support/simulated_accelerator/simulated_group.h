// SimulatedGroup: the simulated accelerators of several processes. Bytes pass from one's memory to
// the other's, by way of the processes' comm::Group, when the queue Bus of both has come to the
// operation. So a missing fence before it moves bytes that are not there yet.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/device_group.h"
#include "tests/support/simulated_accelerator/simulated_device.h"

namespace artesian::test_support {

class SimulatedGroup final : public comm::DeviceGroup {
 public:
  SimulatedGroup(SimulatedDevice& device, comm::Group& group) : device_(device), group_(group) {}

  Result<void> enqueue_all_to_all(std::span<const std::span<const std::byte>> sent,
                                  std::span<const std::span<std::byte>> received,
                                  const comm::What&) override {
    ++operations;
    std::vector<Range> ranges;
    for (const auto& part : sent) ranges.push_back(range_at(part.data(), part.size(), false));
    for (const auto& part : received) ranges.push_back(range_at(part.data(), part.size(), true));
    std::vector<std::span<const std::byte>> from;
    std::vector<std::span<std::byte>> to;
    for (const auto& part : sent) from.emplace_back(device_.for_kernels(part.data()), part.size());
    for (const auto& part : received)
      to.emplace_back(device_.for_kernels(part.data()), part.size());
    return device_.enqueue_on_bus(std::move(ranges), [this, from, to] {
      auto moved = group_.all_to_all(from, to, {"bytes between simulated devices"});
      if (!moved.has_value()) failed_ = std::move(moved).error();
    });
  }
  Result<void> check() override { return failed_.has_value() ? *failed_ : Result<void>(); }
  void abort() noexcept override {}

  inline static std::uint64_t operations = 0;  // of this process

 private:
  SimulatedDevice& device_;
  comm::Group& group_;
  std::optional<Error> failed_;
};

}  // namespace artesian::test_support
