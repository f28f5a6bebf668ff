// The norm of rows with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/lanes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

static_assert(rms_norm_lanes % lanes_of_vector == 0);

/// The sum by lanes of term(i), a vector of the elements from i on, 0 beyond the row's end.
template <typename Term>
HWY_INLINE float sum_along(std::uint64_t width, const Term& term) {
  const FloatTag d;
  float lanes[rms_norm_lanes] = {};
  for (std::uint64_t group = 0; group < width; group += rms_norm_lanes) {
    for (std::uint64_t k = 0; k < rms_norm_lanes && group + k < width; k += lanes_of_vector) {
      hn::StoreU(hn::Add(hn::LoadU(d, lanes + k), term(group + k)), d, lanes + k);
    }
  }
  return lane_total(lanes);
}

template <DType dtype>
void norms(const RmsNormRows& all, void* output, float* inverses) {
  const FloatTag d;
  const auto* weight = static_cast<const Element<dtype>*>(all.weight);
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const auto* x = static_cast<const Element<dtype>*>(all.input) + row * all.width;
    auto* out = static_cast<Element<dtype>*>(output) + row * all.width;
    const float sum = sum_along(all.width, [&](std::uint64_t i) HWY_ATTR {
      const auto some = load_some<dtype>(x, i, all.width, 0.0f);
      return hn::Mul(some, some);
    });
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(all.width) + all.epsilon);
    inverses[row] = inverse;
    const auto times = hn::Set(d, inverse);
    for (std::uint64_t i = 0; i < all.width; i += lanes_of_vector) {
      const auto quotient =
          round_to<dtype>(d, hn::Mul(load_some<dtype>(x, i, all.width, 0.0f), times));
      const auto factor = load_some<dtype>(weight, i, all.width, 0.0f);
      store_some<dtype>(hn::Mul(quotient, factor), out, i, all.width);
    }
  }
}

/// One row's part of the backward pass. `sums`: the group's sums, or null.
template <DType dtype>
void gradient_of_row(const RmsNormRows& all, const RmsNormGradient& gradient, std::uint64_t row,
                     float* sums) {
  const FloatTag d;
  const auto* weight = static_cast<const Element<dtype>*>(all.weight);
  const auto* x = static_cast<const Element<dtype>*>(all.input) + row * all.width;
  const auto* outers = static_cast<const Element<dtype>*>(gradient.outer) + row * all.width;
  auto* out = static_cast<Element<dtype>*>(gradient.input) + row * all.width;
  const auto inverse = hn::Set(d, gradient.inverses[row]);
  const float sum = sum_along(all.width, [&](std::uint64_t i) HWY_ATTR {
    const auto outer = load_some<dtype>(outers, i, all.width, 0.0f);
    const auto inner = hn::Mul(outer, load_some<dtype>(weight, i, all.width, 0.0f));
    return hn::Mul(inner, hn::Mul(load_some<dtype>(x, i, all.width, 0.0f), inverse));
  });
  const auto along = hn::Set(d, sum / static_cast<float>(all.width));
  for (std::uint64_t i = 0; i < all.width; i += lanes_of_vector) {
    const auto outer = load_some<dtype>(outers, i, all.width, 0.0f);
    const auto inner = hn::Mul(outer, load_some<dtype>(weight, i, all.width, 0.0f));
    const auto quotient = hn::Mul(load_some<dtype>(x, i, all.width, 0.0f), inverse);
    store_some<dtype>(hn::Mul(hn::Sub(inner, hn::Mul(quotient, along)), inverse), out, i,
                      all.width);
    if (sums == nullptr) continue;
    const auto before = load_some<DType::Float32>(sums, i, all.width, 0.0f);
    store_some<DType::Float32>(hn::Add(before, hn::Mul(outer, quotient)), sums, i, all.width);
  }
}

template <DType dtype>
void gradients(const RmsNormRows& all, const RmsNormGradient& gradient) {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    float* sums = nullptr;
    if (gradient.weight != nullptr) {
      sums = gradient.weight + row / rows_per_group * all.width;
      for (std::uint64_t i = 0; row % rows_per_group == 0 && i < all.width; ++i) sums[i] = 0.0f;
    }
    gradient_of_row<dtype>(all, gradient, row, sums);
  }
}

void rms_norm_on_target(const RmsNormRows& all, void* output, float* inverses) {
  switch (all.dtype) {
    case DType::Float32: return norms<DType::Float32>(all, output, inverses);
    case DType::Float16: return norms<DType::Float16>(all, output, inverses);
    case DType::BFloat16: return norms<DType::BFloat16>(all, output, inverses);
  }
}

void rms_norm_gradient_on_target(const RmsNormRows& all, const RmsNormGradient& gradient) {
  switch (all.dtype) {
    case DType::Float32: return gradients<DType::Float32>(all, gradient);
    case DType::Float16: return gradients<DType::Float16>(all, gradient);
    case DType::BFloat16: return gradients<DType::BFloat16>(all, gradient);
  }
}

void sum_groups_on_target(const float* source, std::uint64_t rows, std::uint64_t width,
                          float* target) {
  constexpr DType fp32 = DType::Float32;
  for (std::uint64_t row = 0; row < rows; ++row) {
    float* sums = target + row / rows_per_group * width;
    const bool first = row % rows_per_group == 0;
    const auto zeros = hn::Zero(FloatTag());
    for (std::uint64_t i = 0; i < width; i += lanes_of_vector) {
      const auto before = first ? zeros : load_some<fp32>(sums, i, width, 0.0f);
      const auto some = load_some<fp32>(source + row * width, i, width, 0.0f);
      store_some<fp32>(hn::Add(before, some), sums, i, width);
    }
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(rms_norm_on_target);
HWY_EXPORT(rms_norm_gradient_on_target);
HWY_EXPORT(sum_groups_on_target);

}  // namespace

void rms_norm(const RmsNormRows& rows, void* output, float* inverses) noexcept {
  HWY_DYNAMIC_DISPATCH(rms_norm_on_target)(rows, output, inverses);
}

void rms_norm_gradient(const RmsNormRows& rows, const RmsNormGradient& gradient) noexcept {
  HWY_DYNAMIC_DISPATCH(rms_norm_gradient_on_target)(rows, gradient);
}

void sum_groups(const float* source, std::uint64_t rows, std::uint64_t width,
                float* target) noexcept {
  HWY_DYNAMIC_DISPATCH(sum_groups_on_target)(source, rows, width, target);
}

}  // namespace artesian::kernels
#endif
