// Counter-based random numbers: the value at (seed, stream, index) depends on nothing else, so any
// rank, chunk or thread can make any part of a tensor and always gets the same bits.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox 4x32-10).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace artesian {

/// Four random 32-bit words for a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::uint64_t key) noexcept;

/// target[i] = standard normal number (index_first + i) of the stream (seed, stream).
/// Shape: target: [n], any n, any index_first. Source: Box-Muller on pairs of Philox words.
void fill_normal(std::span<float> target, std::uint64_t seed, std::uint64_t stream,
                 std::uint64_t index_first) noexcept;

/// Word `index` of the stream, uniform over 64 bits.
std::uint64_t random_word(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept;

}  // namespace artesian
