// What of this process's memory lies on 2 MiB pages, and what may keep it from that.
//
// Note [Asked for is not given]: madvise(MADV_HUGEPAGE) succeeds whatever comes of it. Transparent
// huge pages may be off in the system (/sys), or for this process alone (PR_SET_THP_DISABLE, which
// container runtimes and batch systems set, and which is inherited over exec); and a page fault
// takes 4 KiB where no 2 MiB in one piece are free. Only the page tables tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace artesian::pinned {

enum class HugePages : std::uint8_t { Allowed, OffInSystem, OffInProcess };

/// Says whether memory that asks for 2 MiB pages may get them. `root`: of another tree than this
/// machine's /sys.
HugePages huge_pages_allowed(const std::string& root = "");

/// Lets this process have them where what started it switched them off. For programs at their
/// start, before they touch memory: a library leaves its host process's settings alone. Returns
/// whether they were off and are on, as huge_pages_switched_on does from then on.
bool allow_huge_pages() noexcept;
bool huge_pages_switched_on() noexcept;
/// Forbids huge pages to this process on purpose: no warning about small pages follows. Returns
/// whether the kernel allows it.
bool forbid_huge_pages() noexcept;

struct PageCount {
  std::uint64_t bytes_resident = 0;
  std::uint64_t bytes_huge = 0;  // bytes of it on 2 MiB pages
};
/// Counts the pages of the range, as it is now. No other mapping may adjoin it that asks for such
/// pages as well: the kernel merges them, and counts for both. Walks the page tables of the process
/// up to the range: not in a step.
PageCount count_pages(const std::byte* data, std::uint64_t bytes);

/// Says, once in this process, that memory is not on 2 MiB pages, and why.
void warn_of_small_pages(const PageCount& count);

}  // namespace artesian::pinned
