// silu(gate) * up with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/exponential_inl.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

template <DType dtype>
const Element<dtype>* row_of(const void* array, std::uint64_t row, std::uint64_t stride) {
  return static_cast<const Element<dtype>*>(array) + row * stride;
}

template <DType dtype>
Element<dtype>* row_of(void* array, std::uint64_t row, std::uint64_t stride) {
  return static_cast<Element<dtype>*>(array) + row * stride;
}

template <DType dtype>
void products(const GatedRows& all, void* product) {
  const FloatTag d;
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const auto* gates = row_of<dtype>(all.gate, row, all.stride);
    const auto* ups = row_of<dtype>(all.up, row, all.stride);
    auto* out = row_of<dtype>(product, row, all.width);
    for (std::uint64_t i = 0; i < all.width; i += lanes_of_vector) {
      const auto gate = load_some<dtype>(gates, i, all.width, 0.0f);
      const auto up = load_some<dtype>(ups, i, all.width, 0.0f);
      const auto silu = round_to<dtype>(d, hn::Mul(gate, sigmoids(gate)));
      store_some<dtype>(hn::Mul(silu, up), out, i, all.width);
    }
  }
}

template <DType dtype>
void gradients(const GatedRows& all, const SwigluGradient& gradient) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const auto* gates = row_of<dtype>(all.gate, row, all.stride);
    const auto* ups = row_of<dtype>(all.up, row, all.stride);
    const auto* outers = row_of<dtype>(gradient.outer, row, all.width);
    auto* of_gates = row_of<dtype>(gradient.gate, row, all.stride);
    auto* of_ups = row_of<dtype>(gradient.up, row, all.stride);
    for (std::uint64_t i = 0; i < all.width; i += lanes_of_vector) {
      const auto gate = load_some<dtype>(gates, i, all.width, 0.0f);
      const auto up = load_some<dtype>(ups, i, all.width, 0.0f);
      const auto outer = load_some<dtype>(outers, i, all.width, 0.0f);
      const auto q = sigmoids(gate);
      const auto silu = round_to<dtype>(d, hn::Mul(gate, q));
      store_some<dtype>(hn::Mul(outer, silu), of_ups, i, all.width);
      const auto inner = round_to<dtype>(d, hn::Mul(outer, up));
      const auto slope = hn::Add(one, hn::Mul(gate, hn::Sub(one, q)));
      store_some<dtype>(hn::Mul(hn::Mul(inner, q), slope), of_gates, i, all.width);
    }
  }
}

void swiglu_on_target(const GatedRows& all, void* product) {
  switch (all.dtype) {
    case DType::Float32: return products<DType::Float32>(all, product);
    case DType::Float16: return products<DType::Float16>(all, product);
    case DType::BFloat16: return products<DType::BFloat16>(all, product);
  }
}

void swiglu_gradient_on_target(const GatedRows& all, const SwigluGradient& gradient) {
  switch (all.dtype) {
    case DType::Float32: return gradients<DType::Float32>(all, gradient);
    case DType::Float16: return gradients<DType::Float16>(all, gradient);
    case DType::BFloat16: return gradients<DType::BFloat16>(all, gradient);
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(swiglu_on_target);
HWY_EXPORT(swiglu_gradient_on_target);

}  // namespace

void swiglu(const GatedRows& rows, void* product) noexcept {
  HWY_DYNAMIC_DISPATCH(swiglu_on_target)(rows, product);
}

void swiglu_gradient(const GatedRows& rows, const SwigluGradient& gradient) noexcept {
  HWY_DYNAMIC_DISPATCH(swiglu_gradient_on_target)(rows, gradient);
}

}  // namespace artesian::kernels
#endif
