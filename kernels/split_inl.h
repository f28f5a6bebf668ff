// Split master weights as vectors, for one dispatch target at a time; included like simd_inl.h.
//
// Include guard per target: flips with HWY_TARGET_TOGGLE.
#if defined(ARTESIAN_KERNELS_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ARTESIAN_KERNELS_SPLIT_INL_H_
#undef ARTESIAN_KERNELS_SPLIT_INL_H_
#else
#define ARTESIAN_KERNELS_SPLIT_INL_H_
#endif

#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// Joins split weights as kernels/split_master.h does, a vector at a time. Clears the tie bit in
/// `exp_avg_sq`.
HWY_INLINE FloatVector join_split(const std::uint16_t* high, const std::uint16_t* low,
                                  FloatVector& exp_avg_sq) {
  const FloatTag d;
  const hn::Rebind<std::uint32_t, FloatTag> du;
  const HalfTag<FloatTag> dh;
  const hn::Rebind<std::int16_t, FloatTag> dl;
  const auto rounded_down = hn::ShiftRight<31>(hn::BitCast(du, exp_avg_sq));
  exp_avg_sq = hn::Abs(exp_avg_sq);
  const auto upper = hn::Add(hn::PromoteTo(du, hn::LoadU(dh, high)), rounded_down);
  const auto above = hn::PromoteTo(IntTag<FloatTag>(), hn::BitCast(dl, hn::LoadU(dh, low)));
  return hn::BitCast(d, hn::Add(hn::ShiftLeft<16>(upper), hn::BitCast(du, above)));
}

HWY_INLINE void store_split(FloatVector master, FloatVector exp_avg_sq, std::uint16_t* high,
                            std::uint16_t* low, float* stored_exp_avg_sq) {
  const FloatTag d;
  const hn::Rebind<std::uint32_t, FloatTag> du;
  const HalfTag<FloatTag> dh;
  const auto bits = hn::BitCast(du, master);
  store<DType::BFloat16>(d, master, high);
  const auto lower = hn::And(bits, hn::Set(du, 0xffff));
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(IntTag<FloatTag>(), lower)), dh, low);
  const auto tie = hn::Eq(hn::And(bits, hn::Set(du, 0x1ffff)), hn::Set(du, 0x8000));
  const auto rounded_down = hn::And(hn::VecFromMask(du, tie), hn::Set(du, 0x80000000u));
  const auto magnitude = hn::BitCast(du, hn::Abs(exp_avg_sq));
  hn::StoreU(hn::BitCast(d, hn::Or(magnitude, rounded_down)), d, stored_exp_avg_sq);
}

/// As kernels::settle_tie.
HWY_INLINE FloatVector settle_ties(FloatVector master) {
  const hn::Rebind<std::uint32_t, FloatTag> du;
  const auto bits = hn::BitCast(du, master);
  const auto tie = hn::Eq(hn::And(bits, hn::Set(du, 0x1ffff)), hn::Set(du, 0x8000));
  const auto less = hn::And(hn::VecFromMask(du, tie), hn::Set(du, 1));
  return hn::BitCast(FloatTag(), hn::Sub(bits, less));
}

/// As store_split, for settled master weights, which need no tie bit.
HWY_INLINE void store_settled(FloatVector master, std::uint16_t* high, std::uint16_t* low) {
  const FloatTag d;
  const hn::Rebind<std::uint32_t, FloatTag> du;
  const auto lower = hn::And(hn::BitCast(du, master), hn::Set(du, 0xffff));
  store<DType::BFloat16>(d, master, high);
  hn::StoreU(hn::DemoteTo(HalfTag<FloatTag>(), hn::BitCast(IntTag<FloatTag>(), lower)),
             HalfTag<FloatTag>(), low);
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
