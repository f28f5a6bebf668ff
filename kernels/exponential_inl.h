// exponentials() and sigmoids(): the functions of exponential.h on vectors, for one dispatch target
// at a time. Included by kernels only, once per target, like simd_inl.h, which must be included
// first.
//
// Include guard per target: flips with HWY_TARGET_TOGGLE.
#if defined(ARTESIAN_KERNELS_EXPONENTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ARTESIAN_KERNELS_EXPONENTIAL_INL_H_
#undef ARTESIAN_KERNELS_EXPONENTIAL_INL_H_
#else
#define ARTESIAN_KERNELS_EXPONENTIAL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/exponential.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

HWY_INLINE FloatVector exponentials(FloatVector x) {
  using E = Exponential;
  const FloatTag d;
  const IntTag<FloatTag> di;
  const auto lowest = hn::Set(d, E::lowest);
  const auto within = hn::IfThenElse(hn::Lt(lowest, x), x, lowest);  // also taken for a NaN
  const auto rounder = hn::Set(d, E::rounder);
  const auto n = hn::Sub(hn::Add(hn::Mul(within, hn::Set(d, E::log2_e)), rounder), rounder);
  const auto r = hn::Sub(hn::Sub(within, hn::Mul(n, hn::Set(d, E::ln2_high))),
                         hn::Mul(n, hn::Set(d, E::ln2_low)));
  auto p = hn::Set(d, E::coefficients[0]);
  for (int k = 1; k < 6; ++k) p = hn::Add(hn::Mul(p, r), hn::Set(d, E::coefficients[k]));
  const auto y = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const auto result = hn::Mul(y, hn::BitCast(d, power));
  const auto zeroed = hn::IfThenElse(hn::Lt(x, lowest), hn::Zero(d), result);
  return hn::IfThenElse(hn::IsNaN(x), x, zeroed);
}

HWY_INLINE FloatVector sigmoids(FloatVector x) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  const auto e = exponentials(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e), hn::Add(one, e));
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
