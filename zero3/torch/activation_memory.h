// Bytes of the process beside the tiers' pools: LibTorch's CPU memory (activations, gradients in
// transit, temporaries), the program itself, and the other heap. LibTorch's large tensors are
// allocated from an arena; memory that the arena keeps for later tensors is not counted, as there
// is none at the peak.
#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "zero3/step/memory_beside_tiers.h"

namespace artesian::zero3 {

/// Measures the program and the heap now, beside `tiers` bytes of resident pools; activations are
/// counted by LibTorch's CPU allocator. All 0 without track_activations() (engine.h). Thread: one
/// at a time.
MemoryBesideTiers memory_beside_tiers(std::uint64_t tiers) noexcept;

/// Returns the bytes that LibTorch uses on the CPU now; 0 without track_activations().
std::uint64_t activations_now() noexcept;

/// Lends up to half of the memory that the arena keeps for LibTorch's next tensors. So both
/// together stay below LibTorch's own peak, as long as tensors grow no faster than loans are
/// returned. Null without track_activations(), and under sanitizers. Thread-safe.
BufferLender* kept_activations() noexcept;
/// Bytes lent now.
std::uint64_t activations_lent() noexcept;

}  // namespace artesian::zero3
