#pragma once

#include <cstdint>

namespace artesian {

/// Bytes of a small page of memory: the smallest amount that a pool hands out.
inline constexpr std::uint64_t page_size = 4096;

/// Bytes of a huge page, transparent or reserved, of x86-64 and of arm64 with small pages of 4 KiB.
inline constexpr std::uint64_t huge_page_size = std::uint64_t{2} << 20;

}  // namespace artesian
