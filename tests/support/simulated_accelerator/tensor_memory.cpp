// PyTorch's memory on the simulated accelerator, cached by stream and freed in the stream's order,
// as by a GPU's caching allocator; and page-locked host memory.
#include <c10/core/impl/alloc_cpu.h>

#include <set>
#include <unordered_map>

#include "tests/support/simulated_accelerator/accelerator.h"

namespace artesian::test_support {
namespace {

using c10::DeviceIndex;
using c10::CachingDeviceAllocator::DeviceStats;

struct Block {
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  std::size_t queue = 0;
  DeviceIndex device = 0;
  std::set<std::size_t> used_on{};  // other queues: recordStream
};

/// Its lock is not held while work is enqueued, since work that runs then may free tensors.
class TensorMemory final : public c10::DeviceAllocator {
 public:
  static TensorMemory& the() {
    static auto* const memory = new TensorMemory();
    return *memory;
  }
  c10::DataPtr allocate(std::size_t asked) override {
    const c10::Device device(simulated, current_device());
    if (asked == 0) return {nullptr, nullptr, &give_back, device};
    const std::size_t bytes = (asked + 511) / 512 * 512;
    reuse_what_has_passed();
    const std::lock_guard lock(mutex_);
    Block block{.bytes = bytes, .queue = current_queue(), .device = current_device()};
    auto& same = cached_[{block.queue, bytes}];
    if (same.empty()) {
      block.at = accelerator().memory.take(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, block.at != nullptr, "sim: out of memory: ", bytes,
                       " bytes asked");
    } else {
      block.at = same.back().at;
      same.pop_back();
    }
    count(block, /*taken=*/true);
    blocks_.emplace(block.at, block);
    return {block.at, block.at, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    const DeviceMemory& memory = accelerator().memory;
    accelerator().queues.enqueue(
        current_queue(), "copy_data",
        {range_at(target, bytes, true), range_at(source, bytes, false)}, [=, &memory] {
          std::memcpy(memory.for_kernels(static_cast<std::byte*>(target)),
                      memory.for_kernels(static_cast<const std::byte*>(source)), bytes);
        });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    accelerator().queues.finish_all();
    reuse_what_has_passed();
    const std::lock_guard lock(mutex_);
    for (auto& [key, cached] : cached_) {
      for (const Block& block : cached) accelerator().memory.give(block.at, block.bytes);
    }
    cached_.clear();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data.get());
    if (found == blocks_.end()) return;
    found->second.used_on.insert(queue_of(stream.id(), stream.device_index()));
  }
  DeviceStats getDeviceStats(DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_.at(static_cast<std::size_t>(device));
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    stats_.at(static_cast<std::size_t>(device)).allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    auto& own = stats_.at(static_cast<std::size_t>(device));
    for (auto* stat : {&own.allocated_bytes[0], &own.reserved_bytes[0], &own.active_bytes[0]}) {
      stat->reset_peak();
    }
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex) override {
    return {accelerator().memory.bytes_free(), accelerator().memory.bytes()};
  }

 private:
  static void give_back(void* at) {
    if (at == nullptr) return;
    TensorMemory& memory = the();
    Block block;
    {
      const std::lock_guard lock(memory.mutex_);
      const auto found = memory.blocks_.find(at);
      block = found->second;
      memory.blocks_.erase(found);
      memory.count(block, /*taken=*/false);
    }
    LateQueues& queues = accelerator().queues;
    block.used_on.erase(block.queue);
    std::vector<LateQueues::Mark> marks;
    for (const std::size_t queue : block.used_on) marks.push_back(queues.record(queue));
    if (!marks.empty()) {
      const std::lock_guard lock(memory.mutex_);
      memory.awaited_.emplace_back(std::move(block), std::move(marks));
      return;
    }
    queues.enqueue(block.queue, "the freeing of memory", {range_at(block.at, block.bytes, true)},
                   [block] { accelerator().memory.poison(block.at, block.bytes); });
    memory.reuse(block);
  }
  void reuse(Block block) {
    block.used_on.clear();
    const std::lock_guard lock(mutex_);
    cached_[{block.queue, block.bytes}].push_back(std::move(block));
  }
  void reuse_what_has_passed() {
    std::vector<std::pair<Block, std::vector<LateQueues::Mark>>> awaited;
    {
      const std::lock_guard lock(mutex_);
      awaited.swap(awaited_);
    }
    for (auto& each : awaited) {
      const bool passed = std::all_of(each.second.begin(), each.second.end(), [](const auto& mark) {
        return accelerator().queues.passed(mark);
      });
      if (passed) {
        reuse(std::move(each.first));
        continue;
      }
      const std::lock_guard lock(mutex_);
      awaited_.push_back(std::move(each));
    }
  }
  void count(const Block& block, bool taken) {
    auto& own = stats_.at(static_cast<std::size_t>(block.device));
    for (auto* stat : {&own.allocated_bytes[0], &own.active_bytes[0], &own.reserved_bytes[0],
                       &own.requested_bytes[0]}) {
      taken ? stat->increase(block.bytes) : stat->decrease(block.bytes);
    }
    for (auto* stat : {&own.allocation[0], &own.active[0], &own.segment[0]}) {
      taken ? stat->increase(1) : stat->decrease(1);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Block>> cached_;  // by queue, bytes
  std::vector<std::pair<Block, std::vector<LateQueues::Mark>>> awaited_;
  std::array<DeviceStats, devices_most> stats_{};
};

class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& the() {
    static auto* const memory = new PinnedMemory();
    return *memory;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* at = c10::alloc_cpu(bytes);
    const std::lock_guard lock(mutex_);
    if (at != nullptr) ranges_[static_cast<const std::byte*>(at)] = bytes;
    return {at, at, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool holds(const void* at) {
    const auto* byte = static_cast<const std::byte*>(at);
    const std::lock_guard lock(mutex_);
    auto found = ranges_.upper_bound(byte);
    return found != ranges_.begin() && (--found, byte < found->first + found->second);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static void give_back(void* at) {  // copies that are enqueued hold a reference
    if (at == nullptr) return;
    {
      const std::lock_guard lock(the().mutex_);
      the().ranges_.erase(static_cast<const std::byte*>(at));
    }
    c10::free_cpu(at);
  }

  std::mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_;
};

}  // namespace

c10::DeviceAllocator& tensor_memory() {
  return TensorMemory::the();
}

bool is_pinned(const void* at) {
  return PinnedMemory::the().holds(at);
}

at::HostAllocator& pinned_memory() {
  return PinnedMemory::the();
}

}  // namespace artesian::test_support
