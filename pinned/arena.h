// Arena: memory for many short-lived pieces of any size, taken from the kernel once and reused.
// Freed pieces stay mapped, so that the next user meets no page fault. The arena never holds more
// memory than was in use at one moment, counted in whole huge pages.
//
// Note [Kept granules]: the address range is divided into granules of 2 MiB (a huge page), which
// are committed and returned whole. A granule is in use while a piece lies on it, and held from its
// first use until it is returned to the kernel. When more granules would be held than were ever in
// use at once, free ones are returned, those at the end of the range first. This can only happen on
// take(); give_back() makes no system call. The lowest fitting place is used, so that long-lived
// pieces gather there and the rest can be returned.
//
// Note [Growing]: the range is reserved as addresses only, and made usable as far as it has been
// needed. So limits on committed memory (vm.overcommit_memory 2) or data (RLIMIT_DATA) and mlockall
// count only memory that was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/huge_page.h"
#include "base/result.h"
#include "pinned/free_list.h"

namespace artesian::pinned {

struct ArenaStatistics {
  std::uint64_t bytes_in_use = 0;
  std::uint64_t bytes_in_use_peak = 0;
  std::uint64_t bytes_held = 0;        // memory in use or kept, in whole granules
  std::uint64_t bytes_held_bound = 0;  // the most granules that were in use at once
  std::uint64_t bytes_returned = 0;    // bytes returned to the kernel so far
};

/// Thread-safe.
class Arena {
 public:
  static constexpr std::uint64_t granule_size = huge_page_size;

  /// Reserves addresses for at most `bytes`, rounded up to granules. Errors: Exhausted (refused),
  /// Unsupported (RLIMIT_AS limits addresses, which others need).
  static Result<std::unique_ptr<Arena>> reserve(std::uint64_t bytes) noexcept;
  /// Unmaps the range, even if pieces are still in use.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// At least `bytes` (rounded up to 4096), aligned to 4096, uninitialised. Empty if no free run is
  /// long enough or the kernel refuses more memory.
  std::span<std::byte> take(std::uint64_t bytes) noexcept;
  /// Takes memory that is held but not in use, at the highest fitting place. For short use: it
  /// needs no memory from the kernel, and stays clear of later allocations.
  std::span<std::byte> take_kept(std::uint64_t bytes) noexcept;
  /// Frees a piece by its address. Returns its size. Checks that the piece was taken from this
  /// arena.
  std::uint64_t give_back(void* data) noexcept;
  /// True if the address lies in the range.
  bool contains(const void* data) const noexcept {
    const auto* const at = static_cast<const std::byte*>(data);
    return base_ <= at && at < base_ + bytes_;
  }

  ArenaStatistics statistics() const noexcept;

  /// Called around a fork, so that the child's copy is consistent and usable.
  void lock_for_fork() noexcept { mutex_.lock(); }
  void unlock_after_fork() noexcept { mutex_.unlock(); }

 private:
  Arena(std::byte* base, std::uint64_t bytes);
  bool make_usable(std::uint64_t bytes) noexcept;
  std::optional<std::uint64_t> highest_kept(std::uint64_t length) const noexcept;
  std::span<std::byte> use(std::uint64_t offset, std::uint64_t length) noexcept;
  void hold(std::uint64_t offset, std::uint64_t length) noexcept;
  void return_what_is_over() noexcept;

  struct Granule {
    std::uint16_t pieces = 0;  // pieces that lie on this granule, wholly or in part
    bool held = false;
  };

  std::byte* const base_;
  const std::uint64_t bytes_;
  mutable std::mutex mutex_;
  FreeList free_;  // this and the members below are guarded by mutex_
  std::unordered_map<std::uint64_t, std::uint64_t> lengths_;  // lengths of pieces in use, by offset
  std::vector<Granule> granules_;
  std::uint64_t bytes_usable_ = 0;  // usable bytes from the start of the range
  std::uint64_t granules_in_use_ = 0;
  std::uint64_t granules_in_use_peak_ = 0;
  std::uint64_t granules_held_ = 0;
  std::uint64_t bytes_in_use_peak_ = 0;
  std::uint64_t bytes_returned_ = 0;
};

}  // namespace artesian::pinned
