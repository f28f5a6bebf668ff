// Arena: memory of any size for many short lives, taken from the kernel once and used again. What
// is given back stays, so that the next to take it meets no page fault; and it costs no memory at
// the peak: what the process holds here is never more than what was in use at one moment, counted
// in whole huge pages.
//
// Note [Kept granules]: the address range is divided into granules of 2 MiB, the size of a huge
// page, which come into memory and leave it whole. A granule is in use while a piece lies on it,
// held from its first use until the kernel has it back. When more would be held than were ever in
// use at once, free ones go back, those at the end of the range first: taking is where that can
// happen, giving back makes no system call. The lowest place that fits is used, so that what lives
// long gathers there and the rest can go.
//
// Note [Growing]: the range is reserved as addresses alone, and made usable as far as it has been
// needed. So neither a limit on committed memory (vm.overcommit_memory 2), nor one on data
// (RLIMIT_DATA), nor mlockall counts what nobody has asked for.
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

  /// Reserves addresses for at most `bytes`, rounded up to granules.
  /// Errors: Exhausted (refused), Unsupported (addresses are limited, RLIMIT_AS: others need them).
  static Result<std::unique_ptr<Arena>> reserve(std::uint64_t bytes) noexcept;
  /// Unmaps the range, whatever is still in use.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// At least `bytes` (rounded up to 4096), aligned to 4096, of any content. Empty where no free
  /// run is that long, or the kernel gives no more.
  std::span<std::byte> take(std::uint64_t bytes) noexcept;
  /// Takes memory that is held but not in use, at the highest such place: for short use, without
  /// taking memory from the kernel now, and away from later allocations.
  std::span<std::byte> take_kept(std::uint64_t bytes) noexcept;
  /// Takes back what one of them gave, by its address. Returns its size. Checks that it was given.
  std::uint64_t give_back(void* data) noexcept;
  /// True if the address lies in the range.
  bool contains(const void* data) const noexcept {
    const auto* const at = static_cast<const std::byte*>(data);
    return base_ <= at && at < base_ + bytes_;
  }

  ArenaStatistics statistics() const noexcept;

  /// Around a fork: the child's copy is then whole, and usable.
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
    std::uint16_t pieces = 0;  // pieces that lie on it, wholly or in part
    bool held = false;
  };

  std::byte* const base_;
  const std::uint64_t bytes_;
  mutable std::mutex mutex_;
  FreeList free_;                                             // this and what follows: under mutex_
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
