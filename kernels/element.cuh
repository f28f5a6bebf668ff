// Elements of any dtype on the device, as floats, and the loop that all elementwise kernels share.
//
// Note [Same bits on the device] Arithmetic uses the _rn intrinsics, which nvcc never fuses. NaNs
// are converted by integer code, because the hardware makes them canonical while base/dtype.h keeps
// their payloads. Subnormals are kept: these files must not be compiled with -use_fast_math or
// -ftz=true. As on the CPU, it is not specified which NaN results from arithmetic on NaNs.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"

#ifdef __FAST_MATH__
#error "fast math would change the bits of the step"
#endif

namespace artesian::kernels::cuda {

template <DType dtype>
struct ElementOf {
  using Type = std::uint16_t;
};
template <>
struct ElementOf<DType::Float32> {
  using Type = float;
};
template <DType dtype>
using Element = typename ElementOf<dtype>::Type;

/// True if a 16-bit pattern or a float is an infinity or a NaN.
template <DType dtype>
__device__ inline bool is_finite(Element<dtype> element) {
  if constexpr (dtype == DType::Float32) {
    return (__float_as_uint(element) & 0x7f800000u) != 0x7f800000u;
  } else {
    constexpr unsigned infinity = dtype == DType::Float16 ? 0x7c00u : 0x7f80u;
    return (element & infinity) != infinity;
  }
}

template <DType dtype>
__device__ inline float widen(Element<dtype> element) {
  if constexpr (dtype == DType::Float32) {
    return element;
  } else if constexpr (dtype == DType::BFloat16) {
    return __uint_as_float(static_cast<unsigned>(element) << 16);
  } else {
    const unsigned magnitude = element & 0x7fffu;
    if (magnitude > 0x7c00u) {  // NaN: quiet, payload kept
      return __uint_as_float((element & 0x8000u) << 16 | 0x7fc00000u | (magnitude & 0x3ffu) << 13);
    }
    return __half2float(__ushort_as_half(element));
  }
}

template <DType dtype>
__device__ inline Element<dtype> round_to(float value) {
  const unsigned bits = __float_as_uint(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if constexpr (dtype == DType::Float32) {
    return value;
  } else if constexpr (dtype == DType::BFloat16) {
    const unsigned rounded = nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    return static_cast<std::uint16_t>(rounded >> 16);
  } else {
    if (nan) {
      return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    }
    return __half_as_ushort(__float2half_rn(value));
  }
}

/// Four elements in one load or store of 8 or 16 bytes.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

/// True if a Four may be read and written at this address.
template <typename T>
bool aligned_for_four(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(Four<T>) == 0;
}

/// Runs this thread's part of [0, count): body(i, 4) for full groups, body(i, k < 4) for the tail,
/// in strides of the whole grid.
template <typename Body>
__device__ inline void for_groups_of_four(std::uint64_t count, Body&& body) {
  const std::uint64_t thread = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x * 4;
  for (std::uint64_t i = thread * 4; i < count; i += stride) {
    body(i, count - i < 4 ? static_cast<int>(count - i) : 4);
  }
}

/// Reads n <= 4 elements at `source`; one load if `vectors` allows it and n is 4.
template <typename T>
__device__ inline Four<T> read(const T* source, int n, bool vectors) {
  if (vectors && n == 4) return *reinterpret_cast<const Four<T>*>(source);
  Four<T> values = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < n) values.at[k] = source[k];
  }
  return values;
}

/// As `read`. The vector is stored by an intrinsic: with two plain stores nvcc may merge the
/// branches, and then stores one element at a time.
template <typename T>
__device__ inline void write(T* target, const Four<T>& values, int n, bool vectors) {
  if (vectors && n == 4) {
    if constexpr (sizeof(T) == 4) {
      const float* v = values.at;
      __stwb(reinterpret_cast<float4*>(target), make_float4(v[0], v[1], v[2], v[3]));
    } else {
      const unsigned low = values.at[0] | static_cast<unsigned>(values.at[1]) << 16;
      const unsigned high = values.at[2] | static_cast<unsigned>(values.at[3]) << 16;
      __stwb(reinterpret_cast<uint2*>(target), make_uint2(low, high));
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < n) target[k] = values.at[k];
  }
}

constexpr unsigned threads_per_block = 256;

/// Blocks for `count` elements, four per thread; beyond 65536 blocks, threads loop.
inline unsigned blocks_for(std::uint64_t count) {
  const std::uint64_t per_block = std::uint64_t{threads_per_block} * 4;
  const std::uint64_t blocks = count / per_block + (count % per_block != 0 ? 1 : 0);
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

/// A dtype as a type, so that a generic lambda can be called with any of the three.
template <DType dtype>
struct DTypeConstant {
  static constexpr DType value = dtype;
};

template <typename Function>
Result<void> with_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::Float32: return function(DTypeConstant<DType::Float32>());
    case DType::Float16: return function(DTypeConstant<DType::Float16>());
    case DType::BFloat16: break;
  }
  return function(DTypeConstant<DType::BFloat16>());
}

}  // namespace artesian::kernels::cuda
