// MemoryRange: anonymous memory that starts on a 2 MiB page and asks for 2 MiB pages, page-locked
// where allowed. Owns the mapping, which holds nothing else and is followed by a guard page. Once
// the memory is faulted in, it counts how much is on 2 MiB pages and warns if that is too little
// (pinned/huge_pages.h).
//
// Note [Small ranges]: the kernel gives a huge page only if the mapping covers all of it. So a
// range of 64 KiB to 2 MiB gets a mapping of 2 MiB; the bytes beyond the range stay unused. Without
// this, direct reads at 128 KiB x 4 and x 8 were a third slower (32 pieces of memory a transfer in
// place of one; 0.80 and 0.74 of fio's bandwidth against 1.14 and 1.14, interleaved).
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

  /// Wraps a range that the caller owns, such as a device's memory. The range is never accessed
  /// here, and `release` is called instead of unmapping it.
  static MemoryRange borrow(std::byte* data, std::uint64_t bytes, std::function<void()> release);

  MemoryRange(MemoryRange&& other) noexcept;
  MemoryRange& operator=(MemoryRange&&) = delete;
  MemoryRange(const MemoryRange&) = delete;
  MemoryRange& operator=(const MemoryRange&) = delete;
  ~MemoryRange();

  /// Asks the kernel for memory on these nodes; call it before first touch. Without nodes it does
  /// nothing. Errors: Unsupported (the kernel refuses, and chooses the nodes itself).
  Result<void> place(const NodePolicy& policy) noexcept;
  /// Faults the whole range in and locks it. If that is refused (the memlock limit, too little
  /// memory), logs it once in this process and leaves the range pageable.
  void lock() noexcept;
  /// Faults the whole range in, with zeros, without locking it; does nothing if too little memory
  /// is available. Call it before storing anything.
  void fault_in() noexcept;

  /// Leaks the mapping, so that its addresses are never used again: base/buffer.h, Note [Abandoned
  /// memory].
  void keep_for_ever() noexcept { data_ = nullptr; }

  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool locked() const noexcept { return locked_; }
  /// Counted when the range was locked or faulted in; 0 before.
  std::uint64_t bytes_on_huge_pages() const noexcept;
  /// True if at least three quarters of the pages that can be 2 MiB pages are.
  bool huge_pages() const noexcept;
  const NodePolicy& nodes() const noexcept { return nodes_; }  // the nodes that the kernel accepted

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
  std::function<void()> release_;  // set if the memory is borrowed
};

}  // namespace artesian::pinned
