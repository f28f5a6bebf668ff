// Counts LibTorch's CPU allocations with an allocator in front of the default one. It takes large
// tensors from its own arena, so that a step does not get its memory page by page, zeroed, from the
// kernel each time (a third of its time). The rest of the heap is malloc's own count minus
// LibTorch's part.
#include "zero3/torch/activation_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "pinned/arena.h"
#include "zero3/torch/engine.h"

namespace artesian::zero3 {
namespace {

// Smaller tensors use malloc: they are many, but small in total.
constexpr std::size_t arena_from = 64ull << 10;

// Tools that detect accesses beyond a tensor's end need separate allocations.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool with_arena = false;
#else
constexpr bool with_arena = true;
#endif

std::atomic<std::uint64_t> bytes_now{0};
std::atomic<std::uint64_t> bytes_peak{0};
std::atomic<std::uint64_t> bytes_of_malloc{0};  // included in bytes_now
std::atomic<std::uint64_t> bytes_lent{0};       // lent from the arena to others than LibTorch

/// Reserves as many addresses as there is memory. If that is refused there is no arena, and malloc
/// serves all tensors.
pinned::Arena* make_arena() {
  const auto bytes = static_cast<std::uint64_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES))) *
                     static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (!with_arena || bytes == 0) return nullptr;
  auto made = pinned::Arena::reserve(bytes);
  if (!made.has_value()) return nullptr;
  return std::move(made).value().release();  // tensors may outlive every static object
}

/// Created by the first call, which is track_activations().
pinned::Arena* arena() {
  static pinned::Arena* const made = [] {
    pinned::Arena* const it = make_arena();
    if (it != nullptr) {
      pthread_atfork([] { arena()->lock_for_fork(); }, [] { arena()->unlock_after_fork(); },
                     [] { arena()->unlock_after_fork(); });
    }
    return it;
  }();
  return made;
}

void count(std::uint64_t bytes) {
  const std::uint64_t now = bytes_now.fetch_add(bytes) + bytes;
  std::uint64_t peak = bytes_peak.load();
  while (now > peak && !bytes_peak.compare_exchange_weak(peak, now)) {
  }
}

/// Subtracts bytes that were counted before.
void take_away(std::atomic<std::uint64_t>& counter, std::uint64_t bytes) {
  const std::uint64_t before = counter.fetch_sub(bytes);
  ARTESIAN_CHECK(before >= bytes, before, bytes);
}

void free_counted(void* data) {
  if (data == nullptr) return;
  if (arena() != nullptr && arena()->contains(data)) {
    take_away(bytes_now, arena()->give_back(data));
    return;
  }
  take_away(bytes_now, malloc_usable_size(data));
  take_away(bytes_of_malloc, malloc_usable_size(data));
  c10::free_cpu(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = take(bytes);
    return {data, data, &free_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }

 private:
  static void* take(std::size_t bytes) {
    if (bytes >= arena_from && arena() != nullptr) {
      const auto piece = arena()->take(bytes);
      if (!piece.empty()) {
        count(piece.size());
        return piece.data();
      }
    }
    void* const data = c10::alloc_cpu(bytes);  // throws if memory is short
    if (data == nullptr) return nullptr;
    bytes_of_malloc.fetch_add(malloc_usable_size(data));
    count(malloc_usable_size(data));
    return data;
  }
};

class KeptActivations final : public BufferLender {
 public:
  bool may_lend(std::uint64_t bytes) const noexcept override {
    return bytes_now.load() + 2 * (bytes_lent.load() + bytes) <= bytes_peak.load();
  }
  BufferLease borrow(std::uint64_t bytes) noexcept override {
    if (!may_lend(bytes)) return {};
    const auto piece = arena()->take_kept(bytes);
    if (piece.empty()) return {};
    bytes_lent.fetch_add(piece.size());
    return {piece.data(), piece.size(), this};
  }
  void give_back(std::byte* data, std::uint64_t) noexcept override {
    take_away(bytes_lent, arena()->give_back(data));
  }
};

/// Bytes that malloc has allocated, including LibTorch's.
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
  // Resident bytes of LibTorch's tensors: malloc's, and everything held by the arena.
  const std::uint64_t small = bytes_of_malloc.load();
  const std::uint64_t held = arena() == nullptr ? 0 : arena()->statistics().bytes_held;
  most.activations = bytes_peak.load();
  // Libraries become resident page by page, when their code first runs.
  most.program = std::max(most.program, at_start.anonymous + memory.bytes_file);
  // MKL allocates buffers to pack matrices and uses only a part of them: at most the remaining
  // resident bytes.
  const std::uint64_t heap = beyond(bytes_allocated(), at_start.allocated + small);
  const std::uint64_t known = memory.bytes_file + at_start.anonymous + tiers + small + held;
  most.heap = std::max(most.heap, std::min(heap, beyond(memory.bytes, known)));
  return most;
}

std::uint64_t activations_now() noexcept {
  return bytes_now.load();
}

BufferLender* kept_activations() noexcept {
  static KeptActivations lender;
  return at_start.tracked && arena() != nullptr ? &lender : nullptr;
}

std::uint64_t activations_lent() noexcept {
  return bytes_lent.load();
}

void track_activations() {
  static CountingAllocator allocator;
  (void)arena();  // its tables must not count as heap
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  const ProcessMemory memory = process_memory();
  at_start = {.tracked = true,
              .anonymous = beyond(memory.bytes, memory.bytes_file),
              .allocated = bytes_allocated()};
}

}  // namespace artesian::zero3
