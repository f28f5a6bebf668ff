// MemoryRange: anonymous memory that starts on a 2 MiB page and asks for 2 MiB pages, page-locked
// where allowed. Owns the mapping; nothing else of the process is in it, and behind it lies a page
// that nobody may touch. Once its memory is there, it counts how much is on 2 MiB pages and says so
// where it is too little (pinned/huge_pages.h).
//
// Note [Small ranges]: a huge page is given only where the mapping covers all of it. So a range of
// 64 KiB to 2 MiB has a mapping of 2 MiB; what is beyond its bytes is used by nobody, and is the
// price: without, direct reads at 128 KiB x 4 and x 8 were a third slower (32 pieces of memory a
// transfer in place of one; 0.80 and 0.74 of fio's bandwidth against 1.14 and 1.14, interleaved).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "pinned/nodes.h"

namespace artesian::pinned {

class MemoryRange {
 public:
  /// Maps `bytes` (a multiple of 4096). Errors: Exhausted (no address range of that size).
  static Result<MemoryRange> map(std::uint64_t bytes, const std::string& name) noexcept;

  /// Wraps a range that the caller owns, such as a device's memory; it is never touched here, and
  /// `release` is called in place of unmapping it.
  static MemoryRange borrow(std::byte* data, std::uint64_t bytes, std::function<void()> release);

  MemoryRange(MemoryRange&& other) noexcept;
  MemoryRange& operator=(MemoryRange&&) = delete;
  MemoryRange(const MemoryRange&) = delete;
  MemoryRange& operator=(const MemoryRange&) = delete;
  ~MemoryRange();

  /// Asks the kernel for memory of these nodes; call it before first touch. Without nodes nothing
  /// is done. Errors: Unsupported (the kernel refuses and chooses the place itself).
  Result<void> place(const NodePolicy& policy) noexcept;
  /// Faults the whole range in and locks it. If that is refused (the memlock limit, too little
  /// memory), logs it once in this process and leaves the range pageable.
  void lock() noexcept;
  /// Faults the whole range in, with zeros, without locking it; does nothing if less memory is
  /// available. Call it before anything is stored.
  void fault_in() noexcept;

  /// Leaks the mapping, so that its addresses are never used again: base/buffer.h, Note [Abandoned
  /// memory].
  void keep_for_ever() noexcept { data_ = nullptr; }

  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool locked() const noexcept { return locked_; }
  /// Counted when it was locked or faulted in; 0 before.
  std::uint64_t bytes_on_huge_pages() const noexcept;
  /// At least three quarters of what can be on 2 MiB pages are.
  bool huge_pages() const noexcept;
  const NodePolicy& nodes() const noexcept { return nodes_; }  // as the kernel took them

 private:
  MemoryRange(std::byte* data, std::uint64_t bytes, std::uint64_t bytes_mapped) noexcept
      : data_(data), bytes_(bytes), bytes_mapped_(bytes_mapped) {}
  void count_huge_pages() noexcept;

  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_mapped_ = 0;
  bool locked_ = false;
  std::uint64_t bytes_huge_ = 0;
  NodePolicy nodes_;
  std::function<void()> release_;  // set: borrowed
};

}  // namespace artesian::pinned
