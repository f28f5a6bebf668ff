// Maps memory that starts on a huge page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace artesian::pinned {

/// Maps anonymous private memory with additional mmap `flags`; the caller unmaps it. `bytes` is a
/// multiple of 4096. Returns null, with errno set, if the kernel refuses or has no such address
/// range.
std::byte* map_aligned(std::uint64_t bytes, int protection, int flags = 0) noexcept;

}  // namespace artesian::pinned
