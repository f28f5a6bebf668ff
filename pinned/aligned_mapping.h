// Address ranges that start on a huge page, for memory that is to lie on such.
#pragma once

#include <cstddef>
#include <cstdint>

namespace artesian::pinned {

/// Anonymous private memory, with these flags of mmap besides; the caller unmaps it. `bytes` is a
/// multiple of 4096. Null, and errno, where the kernel refuses or there are no such addresses.
std::byte* map_aligned(std::uint64_t bytes, int protection, int flags = 0) noexcept;

}  // namespace artesian::pinned
