// The rows of a cross entropy with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/cross_entropy.h"

#include <limits>

#include "kernels/exponential.h"
#include "kernels/lanes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/exponential_inl.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

static_assert(cross_entropy_lanes % lanes_of_vector == 0);

template <DType dtype>
float largest_of(const Element<dtype>* row, std::uint64_t count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const FloatTag d;
  auto largest = hn::Set(d, -infinity);
  for (std::uint64_t i = 0; i < count; i += lanes_of_vector) {
    const auto x = load_some<dtype>(row, i, count, -infinity);
    largest = hn::IfThenElse(hn::Gt(x, largest), x, largest);
  }
  float each[lanes_of_vector];
  hn::StoreU(largest, d, each);
  float result = -infinity;
  for (const float one : each) result = one > result ? one : result;
  return result;
}

/// True if the exponentials replace the logits between the passes, which needs fp32.
template <DType dtype>
constexpr bool keeps_exponentials = dtype == DType::Float32;

template <DType dtype>
float sum_of_exponentials(Element<dtype>* row, std::uint64_t count, float largest) {
  const FloatTag d;
  const auto top = hn::Set(d, largest);
  float lanes[cross_entropy_lanes] = {};
  for (std::uint64_t group = 0; group < count; group += cross_entropy_lanes) {
    for (std::uint64_t k = 0; k < cross_entropy_lanes && group + k < count; k += lanes_of_vector) {
      const auto x =
          load_some<dtype>(row, group + k, count, -std::numeric_limits<float>::infinity());
      const auto e = exponentials(hn::Sub(x, top));
      if constexpr (keeps_exponentials<dtype>) store_some<dtype>(e, row, group + k, count);
      hn::StoreU(hn::Add(hn::LoadU(d, lanes + k), e), d, lanes + k);
    }
  }
  return lane_total(lanes);
}

template <DType dtype>
void put_gradient(Element<dtype>* row, std::uint64_t count, float largest, float factor) {
  const FloatTag d;
  const auto top = hn::Set(d, largest);
  const auto times = hn::Set(d, factor);
  for (std::uint64_t i = 0; i < count; i += lanes_of_vector) {
    auto e = load_some<dtype>(row, i, count, 0.0f);
    if constexpr (!keeps_exponentials<dtype>) e = exponentials(hn::Sub(e, top));
    store_some<dtype>(hn::Mul(e, times), row, i, count);
  }
}

template <DType dtype>
float value_of(const Element<dtype>* row, std::uint64_t index) {
  float first[lanes_of_vector];
  hn::StoreU(load_some<dtype>(row, index, index + 1, 0.0f), FloatTag(), first);
  return first[0];
}

template <DType dtype>
void put_value(float value, Element<dtype>* row, std::uint64_t index) {
  store_some<dtype>(hn::Set(FloatTag(), value), row, index, index + 1);
}

template <DType dtype>
void do_rows(const CrossEntropyRows& all) {
  for (std::uint64_t number = 0; number < all.rows; ++number) {
    auto* row = static_cast<Element<dtype>*>(all.logits) + number * all.vocabulary;
    const auto target = static_cast<std::uint64_t>(all.targets[number]);
    const float largest = largest_of<dtype>(row, all.vocabulary);
    const bool within = target < all.vocabulary;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const float picked = within ? value_of<dtype>(row, target) - largest : nan;
    const float sum = sum_of_exponentials<dtype>(row, all.vocabulary, largest);
    const float factor = within ? all.scale / sum : nan;
    put_gradient<dtype>(row, all.vocabulary, largest, factor);
    if (within) put_value<dtype>(exponential(picked) * factor - all.scale, row, target);
    all.sums[number] = sum;
    all.picked[number] = picked;
  }
}

void cross_entropy_on_target(const CrossEntropyRows& all) {
  switch (all.dtype) {
    case DType::Float32: return do_rows<DType::Float32>(all);
    case DType::Float16: return do_rows<DType::Float16>(all);
    case DType::BFloat16: return do_rows<DType::BFloat16>(all);
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(cross_entropy_on_target);

}  // namespace

void cross_entropy_rows(const CrossEntropyRows& rows) noexcept {
  HWY_DYNAMIC_DISPATCH(cross_entropy_on_target)(rows);
}

}  // namespace artesian::kernels
#endif
