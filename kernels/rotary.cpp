// Rotary position embeddings with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/rotary.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// One head; source and target may be the same.
template <DType dtype, Turn turn>
HWY_INLINE void turn_head(const Element<dtype>* source, Element<dtype>* target,
                          const Element<dtype>* cosines, const Element<dtype>* sines,
                          std::uint64_t half) {
  const FloatTag d;
  const auto product = [&](FloatVector x, FloatVector y)
                           HWY_ATTR { return round_to<dtype>(d, hn::Mul(x, y)); };
  for (std::uint64_t i = 0; i < half; i += lanes_of_vector) {
    const auto a = load_some<dtype>(source, i, half, 0.0f);
    const auto b = load_some<dtype>(source + half, i, half, 0.0f);
    const auto c = load_some<dtype>(cosines, i, half, 0.0f);
    const auto s = load_some<dtype>(sines, i, half, 0.0f);
    const auto ac = product(a, c), bs = product(b, s), bc = product(b, c), as = product(a, s);
    constexpr bool forward = turn == Turn::Forward;
    store_some<dtype>(forward ? hn::Sub(ac, bs) : hn::Add(ac, bs), target, i, half);
    store_some<dtype>(forward ? hn::Add(bc, as) : hn::Sub(bc, as), target + half, i, half);
  }
}

template <DType dtype, Turn turn>
void turn_all(const RotaryRows& all) {
  const std::uint64_t half = all.width / 2;
  const std::uint64_t turned = all.heads * all.width;
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const auto* source = static_cast<const Element<dtype>*>(all.source) + row * all.stride;
    auto* target = static_cast<Element<dtype>*>(all.target) + row * all.stride;
    const std::uint64_t table = (all.position + row) % all.length * half;
    const auto* cosines = static_cast<const Element<dtype>*>(all.cosines) + table;
    const auto* sines = static_cast<const Element<dtype>*>(all.sines) + table;
    for (std::uint64_t first = 0; first < turned; first += all.width) {
      turn_head<dtype, turn>(source + first, target + first, cosines, sines, half);
    }
    if (source == target || turned == all.stride) continue;
    std::memcpy(target + turned, source + turned, (all.stride - turned) * sizeof(target[0]));
  }
}

template <DType dtype>
void turn_rows_of(const RotaryRows& all, Turn turn) {
  if (turn == Turn::Forward) return turn_all<dtype, Turn::Forward>(all);
  turn_all<dtype, Turn::Back>(all);
}

void turn_rows_on_target(const RotaryRows& all, Turn turn) {
  switch (all.dtype) {
    case DType::Float32: return turn_rows_of<DType::Float32>(all, turn);
    case DType::Float16: return turn_rows_of<DType::Float16>(all, turn);
    case DType::BFloat16: return turn_rows_of<DType::BFloat16>(all, turn);
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(turn_rows_on_target);

}  // namespace

void turn_rows(const RotaryRows& rows, Turn turn) noexcept {
  HWY_DYNAMIC_DISPATCH(turn_rows_on_target)(rows, turn);
}

}  // namespace artesian::kernels
#endif
