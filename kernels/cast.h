// Casts between fp32 and the 16-bit types: round to nearest even, same bits as base/dtype.h on
// every dispatch target.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// target[i] = float(source[i]). The source may lie in the tail of the target's own memory
/// (source == (std::uint16_t*)(target + count) - count): elements are expanded front to back.
void expand(const void* source, DType source_dtype, float* target, std::uint64_t count) noexcept;

/// target[i] = round(source[i]). Returns whether every *result* is finite.
bool narrow(const float* source, void* target, DType target_dtype, std::uint64_t count) noexcept;

}  // namespace artesian::kernels
