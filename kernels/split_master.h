// Split master weights: an fp32 weight kept as the bf16 value that it rounds to, which the model
// needs anyway, and its own low 16 bits. Two bytes less to keep, and to move twice in every step.
//
// Note [The bit of a tie]: rounding adds to the upper half what the low half says: nothing below
// 0x8000, one above. Read as a signed number, the low half is thus what the weight has more than
// its bf16 value, in units of the last place of the pattern; signs, subnormals, and what rounds up
// to infinity need no case of their own. At exactly 0x8000 the upper half was rounded to even, up
// or down, and the low half alone does not say which: one bit does, and is kept where one is free,
// in the sign of exp_avg_sq, which is never negative. A NaN stays one; of its payload the quiet bit
// is set, as in bf16.
//
// Note [Without a bit]: an optimizer without squares has no free sign. Its weights are never at a
// tie that rounds down: settle_tie() moves such a one, one weight of 131,072, by the last place of
// fp32. So that the bits are those of every placement, whole weights with bf16 parameters are
// settled, too.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace artesian::kernels {

/// One weight and the second moment beside it, as they are stored.
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

/// The weight, or the next smaller pattern of one that lies half-way between two bf16 values and
/// rounds down; it rounds to the same one. Note [Without a bit].
constexpr float settle_tie(float master) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  return std::bit_cast<float>((bits & 0x1ffffu) == 0x8000u ? bits - 1 : bits);
}

struct JoinedMaster {
  float master = 0.0f;
  float exp_avg_sq = 0.0f;
};

/// split_master undone, bit for bit but for NaNs.
constexpr JoinedMaster join_master(const SplitMaster& split) noexcept {
  const auto moment = std::bit_cast<std::uint32_t>(split.exp_avg_sq);
  const std::uint32_t high = split.high + (moment >> 31);
  const auto above = static_cast<std::int32_t>(static_cast<std::int16_t>(split.low));
  const std::uint32_t bits = (high << 16) + static_cast<std::uint32_t>(above);
  return {std::bit_cast<float>(bits), std::bit_cast<float>(moment & 0x7fffffffu)};
}

}  // namespace artesian::kernels
