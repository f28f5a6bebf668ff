// The program that lies beside checkpoints, and makes fp32 weights of them where there is nothing
// of ours but its own text: python/artesian/checkpoint/zero_to_fp32.py.
#pragma once

#include <string_view>

namespace artesian::zero3 {

inline constexpr std::string_view zero_to_fp32_name = "zero_to_fp32.py";
std::string_view zero_to_fp32_script() noexcept;

}  // namespace artesian::zero3
