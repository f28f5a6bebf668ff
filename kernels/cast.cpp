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

// Expanding in place is safe front to back: writing target[i, i + lanes) reaches source elements
// below 2(i + lanes) - count, and those below i + lanes, which is no less, were read already.
template <DType dtype>
void expand_any(const void* source, float* target, std::uint64_t count) {
  const FloatTag d;
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  const auto* from = static_cast<const std::uint16_t*>(source);
  const std::uint64_t full = count - count % lanes;
  for (std::uint64_t i = 0; i < full; i += lanes) {
    hn::StoreU(load<dtype>(d, from + i), d, target + i);
  }
  const std::uint64_t rest = count - full;
  if (rest == 0) return;
  std::uint16_t padded[lanes] = {};
  float result[lanes];
  std::memcpy(padded, from + full, rest * sizeof(padded[0]));
  hn::StoreU(load<dtype>(d, padded), d, result);
  std::memcpy(target + full, result, rest * sizeof(float));
}

void expand_on_target(const void* source, DType source_dtype, float* target, std::uint64_t count) {
  switch (source_dtype) {
    case DType::Float32:
      if (count != 0) std::memmove(target, source, count * sizeof(float));
      return;
    case DType::Float16: return expand_any<DType::Float16>(source, target, count);
    case DType::BFloat16: return expand_any<DType::BFloat16>(source, target, count);
  }
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
HWY_EXPORT(narrow_on_target);

}  // namespace

void expand(const void* source, DType source_dtype, float* target, std::uint64_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(expand_on_target)(source, source_dtype, target, count);
}

bool narrow(const float* source, void* target, DType target_dtype, std::uint64_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(narrow_on_target)(source, target, target_dtype, count);
}

}  // namespace artesian::kernels
#endif
