// Casts between fp32 and the 16-bit types: round to nearest even, same bits as base/dtype.h on
// every dispatch target.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// target[i] = float(source[i]).
/// Shape: source: [n] of source_dtype; target: [n]; any n, aligned to their elements only. They
/// must not overlap, except that a 16-bit source may lie in the tail of the target's own memory
/// (source == (std::uint16_t*)(target + n) - n): elements are expanded front to back.
void expand(const void* source, DType source_dtype, float* target, std::uint64_t count) noexcept;

/// As expand, but with stores that bypass the caches: about twice as fast if the target is not
/// cached and not read soon.
void expand_streamed(const void* source, DType source_dtype, float* target,
                     std::uint64_t count) noexcept;

/// target[i] = round(source[i]), without overlap. Shape: both [n], any n. Returns whether every
/// *result* is finite.
bool narrow(const float* source, void* target, DType target_dtype, std::uint64_t count) noexcept;

/// The naive versions of the functions above, which equal them bit for bit.
void expand_naive(const void* source, DType source_dtype, float* target,
                  std::uint64_t count) noexcept;
bool narrow_naive(const float* source, void* target, DType target_dtype,
                  std::uint64_t count) noexcept;

}  // namespace artesian::kernels
