// Bytes of the process beside the tiers' pools, each counted where it is taken: what LibTorch has
// on the CPU (activations, gradients on their way, temporaries), the program itself, the other
// heap. LibTorch's large tensors come from an arena: memory that is kept for the next ones counts
// as nobody's, for at the peak there is none.
#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "zero3/step/memory_beside_tiers.h"

namespace artesian::zero3 {

/// Looks at the program and the heap as they are now, beside `tiers` bytes of resident pools;
/// activations are those of LibTorch's CPU allocator. All 0 without track_activations() (engine.h).
/// Thread: one at a time.
MemoryBesideTiers memory_beside_tiers(std::uint64_t tiers) noexcept;

/// Returns the bytes that LibTorch has on the CPU now; 0 without track_activations().
std::uint64_t activations_now() noexcept;

/// Lends what is kept for LibTorch's next tensors, of which it leaves them half: so what both have
/// stays below LibTorch's own peak while tensors grow no faster than loans come back. Null without
/// track_activations(), and under sanitizers. Thread-safe.
BufferLender* kept_activations() noexcept;
/// Bytes of it that are lent now.
std::uint64_t activations_lent() noexcept;

}  // namespace artesian::zero3
