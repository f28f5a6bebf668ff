// Loads, stores and roundings of all element types as float vectors, for one dispatch target at a
// time. Included once per target by the kernels (see hwy/foreach_target.h); nobody else needs it.
//
// Note [Same bits] Every dispatch target gives the bits of the naive version, because
// - multiply and add are separate Highway operations, never MulAdd (which fuses on AVX2 and up),
//   and the tree is built with -ffp-contract=off, without which g++ fuses the intrinsics again;
// - division and square root are the IEEE ones, never approximations;
// - bf16 rounding is integer code. fp16 uses F16C where the target has it; its results, NaN
//   payloads included, equal those of base/dtype.h. Other targets use integer code (Highway 1.0's
//   own fallback truncates and loses infinities);
// - a tail shorter than a vector is padded and goes through the same code as full blocks.
//
// One thing is not specified: which NaN an *arithmetic* operation on NaNs yields (operand order is
// the compiler's choice). A NaN result is a NaN everywhere. Conversions are exact for NaNs, too.
//
// Include guard per target: flips with HWY_TARGET_TOGGLE.
#if defined(ARTESIAN_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ARTESIAN_KERNELS_SIMD_INL_H_
#undef ARTESIAN_KERNELS_SIMD_INL_H_
#else
#define ARTESIAN_KERNELS_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <DType dtype>
using Element = std::conditional_t<dtype == DType::Float32, float, std::uint16_t>;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
constexpr std::size_t lanes_of_vector = hn::MaxLanes(FloatTag());

// The tags below may describe a partial vector (sum_squares loads half a register of floats).
template <class D>
using IntTag = hn::Rebind<std::int32_t, D>;
template <class D>
using HalfTag = hn::Rebind<std::uint16_t, D>;

/// Prefetches the cache line 2 KiB ahead. The hardware's own prefetcher falls behind if arithmetic
/// takes as long as memory; among 0.5 to 4 KiB this distance is the best (adam_bench). The address
/// may lie beyond the array: a prefetch never faults.
HWY_INLINE void prefetch_beyond(const void* address) {
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(address) + 2048;
  hwy::Prefetch(reinterpret_cast<const char*>(beyond));
}

/// Converts fp16 bits in 32-bit lanes to floats with integer operations; as fp16_to_float.
template <class D>
HWY_INLINE hn::Vec<D> fp16_value_in_software(D d, hn::Vec<IntTag<D>> bits) {
  const IntTag<D> di;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fff));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(di, 112 << 23));  // exponent 15 -> 127
  const auto infinite = hn::Or(shifted, hn::Set(di, 0x7f800000));
  const auto quiet_nan = hn::Or(infinite, hn::Set(di, 0x400000));
  const auto subnormal =
      hn::BitCast(di, hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24f)));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7bff)), infinite, result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7c00)), quiet_nan, result);
  return hn::BitCast(d, hn::Or(result, sign));
}

/// Converts floats to fp16 bits in 32-bit lanes with integer operations; as float_to_fp16.
template <class D>
HWY_INLINE hn::Vec<IntTag<D>> fp16_bits_in_software(D d, hn::Vec<D> value) {
  const IntTag<D> di;
  const hn::Rebind<std::uint32_t, D> du;
  const auto bits = hn::BitCast(di, value);
  const auto sign =
      hn::BitCast(di, hn::ShiftRight<16>(hn::And(hn::BitCast(du, value), hn::Set(du, 0x80000000))));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto top = hn::ShiftRight<13>(magnitude);
  const auto one = hn::Set(di, 1);
  const auto rebased = hn::Sub(magnitude, hn::Set(di, 0x38000000));  // exponent 127 -> 15
  const auto odd = hn::And(hn::ShiftRight<13>(rebased), one);
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, hn::Set(di, 0xfff)), odd));
  // Adding 0.5 puts the last bit of an fp16 subnormal at the last bit of a float: the addition
  // itself rounds to nearest even.
  const auto subnormal =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
              hn::Set(di, 0x3f000000));
  const auto quiet_nan = hn::Or(hn::Set(di, 0x7e00), hn::And(top, hn::Set(di, 0x3ff)));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477fefff)), hn::Set(di, 0x7c00), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), quiet_nan, result);
  return hn::Or(result, sign);
}

/// Rounds floats to bf16, still as 32-bit patterns: the low 16 bits are not cleared.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint32_t, D>> bf16_rounded(D, hn::Vec<D> value) {
  const hn::Rebind<std::uint32_t, D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet_nan, rounded);
}

/// Converts 16-bit patterns to floats.
template <DType dtype, class D>
HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<HalfTag<D>> bits) {
  if constexpr (dtype == DType::BFloat16) {
    const hn::Rebind<std::uint32_t, D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  } else {
#if HWY_TARGET <= HWY_AVX2
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else
    return fp16_value_in_software(d, hn::PromoteTo(IntTag<D>(), bits));
#endif
  }
}

/// Converts floats to 16-bit patterns.
template <DType dtype, class D>
HWY_INLINE hn::Vec<HalfTag<D>> round_bits(D d, hn::Vec<D> value) {
  const HalfTag<D> dh;
  if constexpr (dtype == DType::BFloat16) {
    return hn::DemoteTo(dh, hn::BitCast(IntTag<D>(), hn::ShiftRight<16>(bf16_rounded(d, value))));
  } else {
#if HWY_TARGET <= HWY_AVX2
    return hn::BitCast(dh, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
#else
    return hn::DemoteTo(dh, fp16_bits_in_software(d, value));
#endif
  }
}

template <DType dtype, class D>
HWY_INLINE hn::Vec<D> load(D d, const Element<dtype>* source) {
  if constexpr (dtype == DType::Float32) {
    return hn::LoadU(d, source);
  } else {
    return widen<dtype>(d, hn::LoadU(HalfTag<D>(), source));
  }
}

/// Selects whether stores bypass the caches. Streamed stores leave the cache to data that is read
/// soon, and lines that are written completely are not read from memory first. A streaming kernel
/// must call hwy::FlushStream() before other threads may see its results.
enum class Store : std::uint8_t { Cached, Streamed };

/// Streamed: `target` is aligned to the vector.
template <Store how, class V, class D, typename T>
HWY_INLINE void store_vector(V value, D d, T* target) {
  // Highway's own streaming store writes 16 bytes even for a smaller vector.
  if constexpr (how == Store::Streamed && hn::MaxLanes(D()) * sizeof(T) >= 16) {
    hn::Stream(value, d, target);
  } else {
    hn::StoreU(value, d, target);
  }
}

/// Returns how many of `count` elements come before the first one that a vector of `vector_bytes`
/// may be streamed to.
template <typename T>
HWY_INLINE std::uint64_t unaligned_head(const T* target, std::size_t vector_bytes,
                                        std::uint64_t count) {
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(target) % vector_bytes;
  const std::uint64_t head = past == 0 ? 0 : (vector_bytes - past) / sizeof(T);
  return head < count ? head : count;
}

template <DType dtype, class D>
HWY_INLINE void store(D d, hn::Vec<D> value, Element<dtype>* target) {
  if constexpr (dtype == DType::Float32) {
    hn::StoreU(value, d, target);
  } else {
    hn::StoreU(round_bits<dtype>(d, value), HalfTag<D>(), target);
  }
}

/// A vector of the row from element `first` on; lanes beyond the row's end get `beyond`.
template <DType dtype>
HWY_INLINE FloatVector load_some(const Element<dtype>* row, std::uint64_t first,
                                 std::uint64_t count, float beyond) {
  const FloatTag d;
  if (first + lanes_of_vector <= count) return load<dtype>(d, row + first);
  Element<dtype> padded[lanes_of_vector] = {};
  std::memcpy(padded, row + first, (count - first) * sizeof(padded[0]));
  const auto within = hn::Lt(hn::Iota(d, 0.0f), hn::Set(d, static_cast<float>(count - first)));
  return hn::IfThenElse(within, load<dtype>(d, padded), hn::Set(d, beyond));
}

template <DType dtype>
HWY_INLINE void store_some(FloatVector values, Element<dtype>* row, std::uint64_t first,
                           std::uint64_t count) {
  const FloatTag d;
  if (first + lanes_of_vector <= count) return store<dtype>(d, values, row + first);
  Element<dtype> padded[lanes_of_vector];
  store<dtype>(d, values, padded);
  std::memcpy(row + first, padded, (count - first) * sizeof(padded[0]));
}

/// The values after rounding to dtype.
template <DType dtype, class D>
HWY_INLINE hn::Vec<D> round_to(D d, hn::Vec<D> value) {
  if constexpr (dtype == DType::Float32) {
    return value;
  } else if constexpr (dtype == DType::BFloat16) {
    const hn::Rebind<std::uint32_t, D> du;
    return hn::BitCast(d, hn::And(bf16_rounded(d, value), hn::Set(du, 0xffff0000)));
  } else {
    return widen<dtype>(d, round_bits<dtype>(d, value));
  }
}

/// Collects the largest magnitude of stored patterns, as integers, which shows whether any of them
/// was an infinity or a NaN. Starts at zero.
template <DType dtype>
using MagnitudeTag =
    hn::Rebind<std::conditional_t<dtype == DType::Float32, std::int32_t, std::int16_t>, FloatTag>;
template <DType dtype>
using Magnitudes = hn::Vec<MagnitudeTag<dtype>>;

/// Stores rounded values. Returns the largest magnitudes including these.
template <DType dtype, Store how = Store::Cached>
HWY_INLINE Magnitudes<dtype> store_watched(FloatVector value, Element<dtype>* target,
                                           Magnitudes<dtype> largest) {
  const FloatTag d;
  const MagnitudeTag<dtype> dm;
  Magnitudes<dtype> pattern;
  if constexpr (dtype == DType::Float32) {
    store_vector<how>(value, d, target);
    pattern = hn::BitCast(dm, value);
  } else {
    const auto bits = round_bits<dtype>(d, value);
    store_vector<how>(bits, HalfTag<FloatTag>(), target);
    pattern = hn::BitCast(dm, bits);
  }
  const auto no_sign = hn::Set(dm, hwy::LimitsMax<hn::TFromD<MagnitudeTag<dtype>>>());
  return hn::Max(largest, hn::And(pattern, no_sign));
}

template <DType dtype>
HWY_INLINE bool all_finite(Magnitudes<dtype> largest) {
  const MagnitudeTag<dtype> dm;
  constexpr int infinity = dtype == DType::Float32   ? 0x7f800000
                           : dtype == DType::Float16 ? 0x7c00
                                                     : 0x7f80;
  return hn::AllTrue(
      dm, hn::Lt(largest, hn::Set(dm, static_cast<hn::TFromD<MagnitudeTag<dtype>>>(infinity))));
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
