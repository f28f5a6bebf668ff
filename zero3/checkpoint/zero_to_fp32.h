// The program stored beside checkpoints, which converts them to fp32 weights on machines without
// Artesian: the text of python/artesian/checkpoint/zero_to_fp32.py.
#pragma once

#include <string_view>

namespace artesian::zero3 {

inline constexpr std::string_view zero_to_fp32_name = "zero_to_fp32.py";
std::string_view zero_to_fp32_script() noexcept;

}  // namespace artesian::zero3
