// Counts what LibTorch allocates on the CPU: an allocator in front of the default one.
#include "zero3/activation_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>

#include "zero3/engine.h"

namespace artesian::zero3 {
namespace {

std::atomic<std::uint64_t> bytes_now{0};
std::atomic<std::uint64_t> bytes_peak{0};

void free_counted(void* data) {
  if (data == nullptr) return;
  bytes_now.fetch_sub(malloc_usable_size(data));
  c10::free_cpu(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data != nullptr) {
      const std::uint64_t now =
          bytes_now.fetch_add(malloc_usable_size(data)) + malloc_usable_size(data);
      std::uint64_t peak = bytes_peak.load();
      while (now > peak && !bytes_peak.compare_exchange_weak(peak, now)) {
      }
    }
    return {data, data, &free_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
};

}  // namespace

std::uint64_t activation_bytes_peak() noexcept {
  return bytes_peak.load();
}

void track_activations() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

}  // namespace artesian::zero3
