// Single elements of any dtype, as floats; the naive versions are written with these. The SIMD
// counterpart is kernels/simd_inl.h, the CUDA one kernels/element.cuh.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace artesian::kernels {

/// float(array[index]). The array needs no alignment.
inline float load_element(const void* array, DType dtype, std::uint64_t index) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(array) + index * dtype_size(dtype);
  if (dtype == DType::Float32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == DType::Float16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

/// array[index] = round(value). The array needs no alignment.
inline void store_element(void* array, DType dtype, std::uint64_t index, float value) noexcept {
  auto* bytes = static_cast<unsigned char*>(array) + index * dtype_size(dtype);
  if (dtype == DType::Float32) {
    std::memcpy(bytes, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = dtype == DType::Float16 ? float_to_fp16(value) : float_to_bf16(value);
  std::memcpy(bytes, &bits, sizeof(bits));
}

/// The value after rounding to dtype.
inline float round_element(float value, DType dtype) noexcept {
  switch (dtype) {
    case DType::Float32: return value;
    case DType::Float16: return fp16_to_float(float_to_fp16(value));
    case DType::BFloat16: return bf16_to_float(float_to_bf16(value));
  }
  return value;
}

}  // namespace artesian::kernels
