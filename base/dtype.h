// Element types of tiered data, and the reference for their rounding. Conversions round to nearest
// even, in the same way on every machine: kernels/ must match these bit for bit.
#pragma once

#include <bit>
#include <cstdint>

namespace artesian {

enum class DType : std::uint8_t { Float32, Float16, BFloat16 };

/// Bytes of one element.
constexpr std::uint64_t dtype_size(DType dtype) noexcept {
  return dtype == DType::Float32 ? 4 : 2;
}

/// "fp32", "fp16" or "bf16": the names of DeepSpeed's config.
constexpr const char* dtype_name(DType dtype) noexcept {
  return dtype == DType::Float32 ? "fp32" : dtype == DType::Float16 ? "fp16" : "bf16";
}

/// bf16 bits of a float, round to nearest even; a NaN stays a (quiet) NaN.
constexpr std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bf16_to_float(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// fp16 bits of a float, round to nearest even; too large becomes infinity; subnormals are kept.
constexpr std::uint16_t float_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: quiet, top payload bits kept (as F16C does)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {               // below the smallest normal: 2^-14
    if (magnitude < 0x33000000u) return sign;  // below half of the smallest subnormal
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 126u - exponent;
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    const bool up = rest > half || (rest == half && (kept & 1u) != 0);
    return static_cast<std::uint16_t>(sign | (kept + (up ? 1u : 0u)));
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent 127 -> 15
  const std::uint32_t rounded = rebased + 0xfffu + ((rebased >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

constexpr float fp16_to_float(std::uint16_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fu;
  const std::uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1fu) {  // infinity, or NaN made quiet as F16C does
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace artesian
