// Counts what LibTorch allocates on the CPU: an allocator in front of the default one. The rest of
// the heap is malloc's own count less that.
#include "zero3/activation_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>

#include "base/machine.h"
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

/// Bytes that malloc has handed out, LibTorch's among them.
std::uint64_t bytes_allocated() noexcept {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct AtStart {
  bool tracked = false;
  std::uint64_t anonymous = 0;  // resident and not backed by a file
  std::uint64_t allocated = 0;
};
AtStart at_start;

std::uint64_t beyond(std::uint64_t value, std::uint64_t base) noexcept {
  return value > base ? value - base : 0;
}

}  // namespace

MemoryBesideTiers memory_beside_tiers(std::uint64_t tiers) noexcept {
  static MemoryBesideTiers most;
  if (!at_start.tracked) return most;
  const ProcessMemory memory = process_memory();
  const std::uint64_t tensors = bytes_now.load();
  most.activations = bytes_peak.load();
  // Libraries come into memory page by page, as their code is first run.
  most.program = std::max(most.program, at_start.anonymous + memory.bytes_file);
  // MKL takes buffers to pack matrices into and touches a part of them: at most the rest that is
  // resident.
  const std::uint64_t heap = beyond(bytes_allocated(), at_start.allocated + tensors);
  const std::uint64_t known = memory.bytes_file + at_start.anonymous + tiers + tensors;
  most.heap = std::max(most.heap, std::min(heap, beyond(memory.bytes, known)));
  return most;
}

std::uint64_t activations_now() noexcept {
  return bytes_now.load();
}

void track_activations() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  const ProcessMemory memory = process_memory();
  at_start = {.tracked = true,
              .anonymous = beyond(memory.bytes, memory.bytes_file),
              .allocated = bytes_allocated()};
}

}  // namespace artesian::zero3
