// VirtualTimeDevice: a SeparateDevice with a clock of its own. Enqueued work takes virtual seconds,
// by its bytes and for its launch, in the order of its queue and after the fences that the queue
// has waited for. Waits of the host advance the host's clock. So an engine's schedule of copies,
// computing and waits has a length that depends on the schedule alone.
//
//   an operation   begins when its queue is free and the host has enqueued it
//   a fence        passes when all before it in its queue has ended
//   the host       is at the latest fence that it has waited for; its own work takes time only
//                  where the test says so
//   computing      takes what the test's model says, by compute()
//
// SeparateDevice decides when copies really run, and finds the same mistakes. But a fence that has
// not passed by the host's clock is not ready. Kernels on state take no time.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/separate_device.h"

namespace artesian::test_support {

struct VirtualRates {
  double to_device = std::numeric_limits<double>::infinity();  // bytes per second
  double to_host = std::numeric_limits<double>::infinity();
  double launch = 0.0;  // seconds of each copy, whatever its bytes
};

class VirtualTimeDevice final : public SeparateDevice {
 public:
  struct Span {
    Queue queue = Queue::Compute;
    double begin = 0.0;  // virtual seconds since creation
    double end = 0.0;
  };
  explicit VirtualTimeDevice(const VirtualRates& rates, Order order = Order::Late,
                             std::uint64_t seed = 1)
      : SeparateDevice(order, seed), rates_(rates) {}

  bool waits_for_each_copy = false;  // a planted fault: as if host memory were pageable
  // Seconds of the host's work: for a byte that has come down, once the host has waited for it; and
  // for a byte that goes up, before its copy is enqueued.
  double add_seconds = 0.0;
  double update_seconds = 0.0;

  /// Takes `seconds` of the queue Compute, for the model's computing.
  void compute(double seconds) { take(Queue::Compute, seconds); }
  /// Takes `seconds` of the host.
  void work(double seconds) noexcept { host_ += seconds; }
  /// Waits for the queue Compute, as when the host reads a value of the model.
  void read_value() noexcept { host_ = std::max(host_, end_[index(Queue::Compute)]); }
  /// Virtual seconds since creation, of the host.
  double now() const noexcept { return host_; }
  /// Returns the seconds that a queue has worked so far.
  double busy(Queue queue) const noexcept { return busy_[index(queue)]; }
  std::uint64_t copies() const noexcept { return copies_; }
  const std::vector<Span>& spans() const noexcept { return spans_; }

  Result<void> copy_to_device(std::byte* target, const std::byte* source,
                              std::uint64_t bytes) override {
    ARTESIAN_TRY_VOID(SeparateDevice::copy_to_device(target, source, bytes));
    host_ += static_cast<double>(bytes) * update_seconds;
    return copied(Queue::ToDevice, static_cast<double>(bytes) / rates_.to_device);
  }
  Result<void> copy_to_host(std::byte* target, const std::byte* source,
                            std::uint64_t bytes) override {
    ARTESIAN_TRY_VOID(SeparateDevice::copy_to_host(target, source, bytes));
    come_ += static_cast<double>(bytes);
    return copied(Queue::ToHost, static_cast<double>(bytes) / rates_.to_host);
  }
  Result<DeviceFence> record(Queue queue) override {
    ARTESIAN_TRY(fence, SeparateDevice::record(queue));
    passes_[index(queue)][fence.sequence] = end_[index(queue)];
    if (queue == Queue::ToHost) to_add_[fence.sequence] = std::exchange(come_, 0.0);
    return fence;
  }
  Result<void> wait(Queue queue, DeviceFence fence) override {
    ARTESIAN_TRY_VOID(SeparateDevice::wait(queue, fence));
    double& end = end_[index(queue)];
    end = std::max(end, passes_at(fence));
    return {};
  }
  /// True if the fence has passed by the host's clock. Pending work before it then runs.
  bool ready(DeviceFence fence) noexcept override {
    if (passes_at(fence) > host_ || !SeparateDevice::finish(fence).has_value()) return false;
    add_gradients(fence);
    return true;
  }
  Result<void> finish(DeviceFence fence) noexcept override {
    ARTESIAN_TRY_VOID(SeparateDevice::finish(fence));
    host_ = std::max(host_, passes_at(fence));
    add_gradients(fence);
    return {};
  }

 private:
  static constexpr std::size_t index(Queue queue) noexcept {
    return static_cast<std::size_t>(queue);
  }
  void take(Queue queue, double seconds) {
    double& end = end_[index(queue)];
    const double begin = std::max(end, host_);
    end = begin + seconds;
    busy_[index(queue)] += seconds;
    spans_.push_back({queue, begin, end});
  }
  Result<void> copied(Queue queue, double seconds) {
    take(queue, seconds + rates_.launch);
    ++copies_;
    if (!waits_for_each_copy) return {};
    ARTESIAN_TRY(end, record(queue));
    return finish(end);
  }
  /// Takes the host's seconds for what has come down by that fence.
  void add_gradients(DeviceFence fence) noexcept {
    if (fence.queue != Queue::ToHost) return;
    const auto end = to_add_.upper_bound(fence.sequence);
    for (auto each = to_add_.begin(); each != end; ++each) host_ += each->second * add_seconds;
    to_add_.erase(to_add_.begin(), end);
  }
  double passes_at(DeviceFence fence) const noexcept {
    if (fence.sequence == 0) return 0.0;
    const auto& passes = passes_[index(fence.queue)];
    const auto found = passes.find(fence.sequence);
    EXPECT_NE(found, passes.end()) << "a fence that was never recorded";
    return found != passes.end() ? found->second : 0.0;
  }

  const VirtualRates rates_;
  double host_ = 0.0;
  std::array<double, tiering::queue_count> end_{};  // of what is enqueued
  std::array<double, tiering::queue_count> busy_{};
  std::array<std::map<std::uint64_t, double>, tiering::queue_count> passes_;  // by fence
  double come_ = 0.0;                       // bytes copied to the host since the last fence
  std::map<std::uint64_t, double> to_add_;  // bytes by fence
  std::uint64_t copies_ = 0;
  std::vector<Span> spans_;
};

}  // namespace artesian::test_support
