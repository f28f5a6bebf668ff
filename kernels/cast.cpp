// Casts with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/cast.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// For fewer elements than a vector has.
template <DType dtype>
void expand_few(const std::uint16_t* source, float* target, std::uint64_t count) {
  const FloatTag d;
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  if (count == 0) return;
  std::uint16_t padded[lanes] = {};
  float result[lanes];
  std::memcpy(padded, source, count * sizeof(padded[0]));
  hn::StoreU(load<dtype>(d, padded), d, result);
  std::memcpy(target, result, count * sizeof(float));
}

// Expanding in place is safe from front to back: writing target[i, i + lanes) overwrites source
// elements below 2(i + lanes) - count, which is at most i + lanes, and those were read already.
template <DType dtype, Store how>
void expand_any(const void* source, float* target, std::uint64_t count) {
  const FloatTag d;
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  const auto* from = static_cast<const std::uint16_t*>(source);
  const std::uint64_t head =
      how == Store::Streamed ? unaligned_head(target, lanes * sizeof(float), count) : 0;
  expand_few<dtype>(from, target, head);
  const std::uint64_t full = count - (count - head) % lanes;
  for (std::uint64_t i = head; i < full; i += lanes) {
    store_vector<how>(load<dtype>(d, from + i), d, target + i);
  }
  expand_few<dtype>(from + full, target + full, count - full);
  if constexpr (how == Store::Streamed) hwy::FlushStream();
}

template <Store how>
void expand_by_dtype(const void* source, DType source_dtype, float* target, std::uint64_t count) {
  switch (source_dtype) {
    case DType::Float32:
      if (count != 0) std::memmove(target, source, count * sizeof(float));
      return;
    case DType::Float16: return expand_any<DType::Float16, how>(source, target, count);
    case DType::BFloat16: return expand_any<DType::BFloat16, how>(source, target, count);
  }
}

void expand_on_target(const void* source, DType source_dtype, float* target, std::uint64_t count) {
  expand_by_dtype<Store::Cached>(source, source_dtype, target, count);
}

void expand_streamed_on_target(const void* source, DType source_dtype, float* target,
                               std::uint64_t count) {
  expand_by_dtype<Store::Streamed>(source, source_dtype, target, count);
}

template <DType dtype>
bool narrow_any(const float* source, void* target, std::uint64_t count) {
  const FloatTag d;
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  auto* to = static_cast<Element<dtype>*>(target);
  auto largest = hn::Zero(MagnitudeTag<dtype>());
  const std::uint64_t full = count - count % lanes;
  for (std::uint64_t i = 0; i < full; i += lanes) {
    largest = store_watched<dtype>(hn::LoadU(d, source + i), to + i, largest);
  }
  const std::uint64_t rest = count - full;
  if (rest != 0) {
    float padded[lanes] = {};
    Element<dtype> result[lanes];
    std::memcpy(padded, source + full, rest * sizeof(float));
    largest = store_watched<dtype>(hn::LoadU(d, padded), result, largest);
    std::memcpy(to + full, result, rest * sizeof(result[0]));
  }
  return all_finite<dtype>(largest);
}

bool narrow_on_target(const float* source, void* target, DType target_dtype, std::uint64_t count) {
  switch (target_dtype) {
    case DType::Float32: return narrow_any<DType::Float32>(source, target, count);
    case DType::Float16: return narrow_any<DType::Float16>(source, target, count);
    case DType::BFloat16: return narrow_any<DType::BFloat16>(source, target, count);
  }
  return true;
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(expand_on_target);
HWY_EXPORT(expand_streamed_on_target);
HWY_EXPORT(narrow_on_target);

}  // namespace

void expand(const void* source, DType source_dtype, float* target, std::uint64_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(expand_on_target)(source, source_dtype, target, count);
}

void expand_streamed(const void* source, DType source_dtype, float* target,
                     std::uint64_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(expand_streamed_on_target)(source, source_dtype, target, count);
}

bool narrow(const float* source, void* target, DType target_dtype, std::uint64_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(narrow_on_target)(source, target, target_dtype, count);
}

}  // namespace artesian::kernels
#endif
