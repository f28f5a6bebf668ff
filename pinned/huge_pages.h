// Which of this process's memory lies on 2 MiB pages, and what may prevent that.
//
// Note [Asked for is not given]: madvise(MADV_HUGEPAGE) succeeds even if it has no effect.
// Transparent huge pages may be off in the system (/sys), or for this process alone
// (PR_SET_THP_DISABLE, which container runtimes and batch systems set, and which is inherited over
// exec). And a page fault gets a 4 KiB page if no contiguous 2 MiB are free. Only the page tables
// tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace artesian::pinned {

enum class HugePages : std::uint8_t { Allowed, OffInSystem, OffInProcess };

/// Returns whether memory that asks for 2 MiB pages may get them. `root`: prefix for the paths in
/// /sys, for tests.
HugePages huge_pages_allowed(const std::string& root = "");

/// Enables huge pages for this process if its parent disabled them. For programs at their start,
/// before they touch memory: a library leaves its host process's settings alone. Returns whether
/// they were disabled and now are enabled; huge_pages_switched_on then returns true.
bool allow_huge_pages() noexcept;
bool huge_pages_switched_on() noexcept;
/// Forbids huge pages to this process on purpose: no warning about small pages follows. Returns
/// whether the kernel allows it.
bool forbid_huge_pages() noexcept;

struct PageCount {
  std::uint64_t bytes_resident = 0;
  std::uint64_t bytes_huge = 0;  // bytes of it on 2 MiB pages
};
/// Counts the pages of the range as it is now. No adjoining mapping may ask for huge pages as well:
/// the kernel would merge the two and count both. This walks the process's page tables up to the
/// range, so do not call it in a step.
PageCount count_pages(const std::byte* data, std::uint64_t bytes);

/// Warns, once in this process, that memory is not on 2 MiB pages, and why.
void warn_of_small_pages(const PageCount& count);

}  // namespace artesian::pinned
