// Selects the instruction set of the kernels. All give the same bits (Note [Same bits] in
// simd_inl.h). A training run logs its target at the start, and tests run every kernel on each
// target.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace artesian::kernels {

/// Targets that this build has and this CPU can run, best first, such as "AVX3" (AVX-512), "AVX2",
/// "SSE4", "SSSE3", "SCALAR". The last one is the compiler's baseline and runs anywhere.
std::vector<std::string> supported_targets();

/// The target that the next kernel call uses.
const char* active_target_name() noexcept;

/// Makes all kernels use this target; an empty name restores the best one. For tests and
/// benchmarks. Errors: Invalid, naming the supported ones. Thread: no kernel may be running.
Result<void> force_target(std::string_view name);

}  // namespace artesian::kernels
