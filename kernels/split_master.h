// Split master weights: an fp32 weight is kept as its bf16 rounding, which the model needs anyway,
// and its own low 16 bits. This saves two bytes per weight, which would otherwise be stored, read
// and written in every step.
//
// Note [The bit of a tie]: rounding adds 0 to the upper half if the low half is below 0x8000, and 1
// if it is above. Read as a signed number, the low half is thus the difference between the weight
// and its bf16 value, in units of the pattern's last place. Signs, subnormals and weights that
// round up to infinity need no special case. At exactly 0x8000 the upper half was rounded to even,
// up or down, and the low half does not tell which. One bit tells: the sign of exp_avg_sq, which is
// never negative and so is free. A NaN stays a NaN; its quiet bit is set, as in bf16.
//
// Note [Without a bit]: an optimizer without squares has no free sign. So settle_tie() changes each
// weight at a tie that rounds down (one in 131,072) by the last place of fp32. Whole weights with
// bf16 parameters are settled, too, so that all placements give the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// One weight and the second moment beside it, as stored.
struct SplitMaster {
  std::uint16_t high = 0;   // bf16: the parameter
  std::uint16_t low = 0;    // low half of the weight's pattern
  float exp_avg_sq = 0.0f;  // negative: a tie that was rounded down
};

constexpr SplitMaster split_master(float master, float exp_avg_sq) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  const std::uint32_t rounded_down = (bits & 0x1ffffu) == 0x8000u ? 0x80000000u : 0u;
  const auto magnitude = std::bit_cast<std::uint32_t>(exp_avg_sq) & 0x7fffffffu;
  return {float_to_bf16(master), static_cast<std::uint16_t>(bits),
          std::bit_cast<float>(magnitude | rounded_down)};
}

/// Returns the weight, or, if it lies half-way between two bf16 values and rounds down, the next
/// smaller pattern, which rounds to the same bf16 value: Note [Without a bit].
constexpr float settle_tie(float master) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  return std::bit_cast<float>((bits & 0x1ffffu) == 0x8000u ? bits - 1 : bits);
}

struct JoinedMaster {
  float master = 0.0f;
  float exp_avg_sq = 0.0f;
};

/// Undoes split_master, bit for bit except for NaNs.
constexpr JoinedMaster join_master(const SplitMaster& split) noexcept {
  const auto moment = std::bit_cast<std::uint32_t>(split.exp_avg_sq);
  const std::uint32_t high = split.high + (moment >> 31);
  const auto above = static_cast<std::int32_t>(static_cast<std::int16_t>(split.low));
  const std::uint32_t bits = (high << 16) + static_cast<std::uint32_t>(above);
  return {std::bit_cast<float>(bits), std::bit_cast<float>(moment & 0x7fffffffu)};
}

}  // namespace artesian::kernels
