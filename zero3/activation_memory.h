// Bytes that LibTorch has on the CPU: activations, gradients on their way, temporaries.
#pragma once

#include <cstdint>

namespace artesian::zero3 {

/// The most bytes at once since track_activations() (engine.h); 0 without it.
std::uint64_t activation_bytes_peak() noexcept;

}  // namespace artesian::zero3
