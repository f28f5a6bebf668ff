// Gradient kernels with SIMD. See Note [Same bits] in simd_inl.h.
#include "kernels/gradient.h"

#include <algorithm>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gradient.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/cast.h"
#include "kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// Processes full vectors and returns whether all results are finite; count is a multiple of their
/// length.
template <Accumulate how, DType acc_dtype, DType grad_dtype, Store store>
HWY_NOINLINE bool accumulate_vectors(Element<acc_dtype>* acc, const float* grad,
                                     std::uint64_t count) {
  const FloatTag d;
  auto largest = hn::Zero(MagnitudeTag<acc_dtype>());
  for (std::uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    prefetch_beyond(grad + i);
    if constexpr (how == Accumulate::Add) prefetch_beyond(acc + i);
    auto value = round_to<grad_dtype>(d, hn::LoadU(d, grad + i));
    if constexpr (how == Accumulate::Add) value = hn::Add(load<acc_dtype>(d, acc + i), value);
    largest = store_watched<acc_dtype, store>(value, acc + i, largest);
  }
  return all_finite<acc_dtype>(largest);
}

/// As above, for fewer elements than a vector has.
template <Accumulate how, DType acc_dtype, DType grad_dtype>
bool accumulate_few(Element<acc_dtype>* acc, const float* grad, std::uint64_t count) {
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  if (count == 0) return true;
  float padded[lanes] = {};
  Element<acc_dtype> result[lanes] = {};
  std::memcpy(padded, grad, count * sizeof(float));
  if (how == Accumulate::Add) std::memcpy(result, acc, count * sizeof(result[0]));
  const bool finite =
      accumulate_vectors<how, acc_dtype, grad_dtype, Store::Cached>(result, padded, lanes);
  std::memcpy(acc, result, count * sizeof(result[0]));
  return finite;
}

/// As above, for any count. Outputs that are not read soon are streamed.
template <Accumulate how, DType acc_dtype, DType grad_dtype>
bool accumulate_any(void* acc, const float* grad, std::uint64_t count) {
  constexpr std::size_t lanes = hn::MaxLanes(FloatTag());
  constexpr Store store = how == Accumulate::Set ? Store::Streamed : Store::Cached;
  auto* sum = static_cast<Element<acc_dtype>*>(acc);
  const std::uint64_t head =
      store == Store::Streamed ? unaligned_head(sum, lanes * sizeof(sum[0]), count) : 0;
  bool finite = accumulate_few<how, acc_dtype, grad_dtype>(sum, grad, head);
  const std::uint64_t rest = (count - head) % lanes;
  const std::uint64_t full = count - head - rest;
  finite &= accumulate_vectors<how, acc_dtype, grad_dtype, store>(sum + head, grad + head, full);
  finite &= accumulate_few<how, acc_dtype, grad_dtype>(sum + head + full, grad + head + full, rest);
  if constexpr (store == Store::Streamed) hwy::FlushStream();
  return finite;
}

template <Accumulate how, DType acc_dtype>
bool accumulate_by_grad(void* acc, const float* grad, DType grad_dtype, std::uint64_t count) {
  // Rounding twice to the same dtype equals rounding once.
  if (how == Accumulate::Set && grad_dtype == acc_dtype) {
    return accumulate_any<how, acc_dtype, DType::Float32>(acc, grad, count);
  }
  switch (grad_dtype) {
    case DType::Float32: return accumulate_any<how, acc_dtype, DType::Float32>(acc, grad, count);
    case DType::Float16: return accumulate_any<how, acc_dtype, DType::Float16>(acc, grad, count);
    case DType::BFloat16: return accumulate_any<how, acc_dtype, DType::BFloat16>(acc, grad, count);
  }
  return true;
}

template <Accumulate how>
bool accumulate_by_acc(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                       std::uint64_t count) {
  switch (acc_dtype) {
    case DType::Float32:
      return accumulate_by_grad<how, DType::Float32>(acc, grad, grad_dtype, count);
    case DType::Float16:
      return accumulate_by_grad<how, DType::Float16>(acc, grad, grad_dtype, count);
    case DType::BFloat16:
      return accumulate_by_grad<how, DType::BFloat16>(acc, grad, grad_dtype, count);
  }
  return true;
}

bool accumulate_on_target(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                          std::uint64_t count, Accumulate how) {
  return how == Accumulate::Set
             ? accumulate_by_acc<Accumulate::Set>(acc, acc_dtype, grad, grad_dtype, count)
             : accumulate_by_acc<Accumulate::Add>(acc, acc_dtype, grad, grad_dtype, count);
}

// The 16 virtual lanes of a sum of squares, in as many registers as the target needs.
using DoubleTag = hn::ScalableTag<double>;
constexpr std::size_t virtual_lanes = 16;
constexpr std::size_t double_lanes = hn::MaxLanes(DoubleTag());
constexpr std::size_t registers = virtual_lanes / double_lanes;

/// True if two registers share a load: a 32-bit word holds two bf16, of which the upper is a float
/// after masking and the lower after a shift; so one register gets the odd elements and the next
/// the even ones.
template <DType dtype>
constexpr bool paired = dtype == DType::BFloat16&& double_lanes > 1;

/// The virtual lane in lane `lane` of register `k`.
template <DType dtype>
constexpr std::size_t virtual_lane(std::size_t k, std::size_t lane) {
  if (!paired<dtype>) return k * double_lanes + lane;
  return k / 2 * 2 * double_lanes + lane * 2 + k % 2;
}

/// 16 elements as doubles, in the order of virtual_lane.
template <DType dtype>
HWY_INLINE void load_group(const Element<dtype>* data, hn::Vec<DoubleTag>* values) {
  const DoubleTag dd;
  const hn::Rebind<float, DoubleTag> df;
  if constexpr (!paired<dtype>) {
    for (std::size_t k = 0; k < registers; ++k) {
      values[k] = hn::PromoteTo(dd, load<dtype>(df, data + k * double_lanes));
    }
  } else {
    const hn::Rebind<std::uint32_t, DoubleTag> du;
    for (std::size_t k = 0; k < registers; k += 2) {
      const hn::Repartition<Element<dtype>, decltype(du)> elements;
      const auto pair = hn::BitCast(du, hn::LoadU(elements, data + k * double_lanes));
      const auto even = hn::ShiftLeft<16>(pair);
      const auto odd = hn::And(pair, hn::Set(du, 0xffff0000u));
      values[k] = hn::PromoteTo(dd, hn::BitCast(df, even));
      values[k + 1] = hn::PromoteTo(dd, hn::BitCast(df, odd));
    }
  }
}

/// Adds the squares of `count` elements, a multiple of 16, to the lanes.
/// MulAdd is allowed here and only here: the square of a float is exact in fp64, so fusing it with
/// the addition rounds once in both cases.
template <DType dtype>
HWY_INLINE void add_squares(const Element<dtype>* data, std::uint64_t count,
                            hn::Vec<DoubleTag>* sums) {
  hn::Vec<DoubleTag> values[registers];
  for (std::uint64_t i = 0; i < count; i += virtual_lanes) {
    prefetch_beyond(data + i);
    load_group<dtype>(data + i, values);
    for (std::size_t k = 0; k < registers; ++k) {
      sums[k] = hn::MulAdd(values[k], values[k], sums[k]);
    }
  }
}

template <DType dtype>
double sum_of_leaf(const Element<dtype>* elements, std::uint64_t count) {
  const DoubleTag dd;
  const std::uint64_t full = count - count % virtual_lanes;
  hn::Vec<DoubleTag> sums[registers];
  for (std::size_t k = 0; k < registers; ++k) sums[k] = hn::Zero(dd);
  add_squares<dtype>(elements, full, sums);
  if (full != count) {  // padded with zeros: adding +0 to a sum that is never -0 changes nothing
    Element<dtype> padded[virtual_lanes] = {};
    std::memcpy(padded, elements + full, (count - full) * sizeof(padded[0]));
    add_squares<dtype>(padded, virtual_lanes, sums);
  }
  double lanes[virtual_lanes];
  for (std::size_t k = 0; k < registers; ++k) {
    double values[double_lanes];
    hn::StoreU(sums[k], dd, values);
    for (std::size_t lane = 0; lane < double_lanes; ++lane) {
      lanes[virtual_lane<dtype>(k, lane)] = values[lane];
    }
  }
  double total = lanes[0];
  for (std::size_t lane = 1; lane < virtual_lanes; ++lane) total += lanes[lane];
  return total;
}

template <DType dtype>
void sum_squares_any(const void* data, std::uint64_t count, double* leaf_sums) {
  const auto* elements = static_cast<const Element<dtype>*>(data);
  for (std::uint64_t first = 0; first < count; first += norm_leaf) {
    const double sum = sum_of_leaf<dtype>(elements + first, std::min(norm_leaf, count - first));
    *leaf_sums++ = sum == sum ? sum : std::numeric_limits<double>::quiet_NaN();
  }
}

void sum_squares_on_target(const void* data, DType dtype, std::uint64_t count, double* leaf_sums) {
  switch (dtype) {
    case DType::Float32: return sum_squares_any<DType::Float32>(data, count, leaf_sums);
    case DType::Float16: return sum_squares_any<DType::Float16>(data, count, leaf_sums);
    case DType::BFloat16: return sum_squares_any<DType::BFloat16>(data, count, leaf_sums);
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(accumulate_on_target);
HWY_EXPORT(sum_squares_on_target);

}  // namespace

bool accumulate_gradient(void* acc, DType acc_dtype, const float* grad, DType grad_dtype,
                         std::uint64_t count, Accumulate how) noexcept {
  return HWY_DYNAMIC_DISPATCH(accumulate_on_target)(acc, acc_dtype, grad, grad_dtype, count, how);
}

// Infinities and NaNs show in the sum of squares.
void accumulate_piece(const GradientPiece& piece, const GradientDtypes& dtypes) noexcept {
  constexpr std::uint64_t expanded = 2048;  // elements made fp32 at a time: 8 KiB on the stack
  auto* const acc = static_cast<std::byte*>(piece.acc);
  if (dtypes.grad == DType::Float32) {
    static_cast<void>(accumulate_gradient(acc, dtypes.acc, static_cast<const float*>(piece.grad),
                                          dtypes.rounded, piece.count, piece.how));
    return;
  }
  const auto* const grad = static_cast<const std::byte*>(piece.grad);
  float values[expanded];
  for (std::uint64_t first = 0; first < piece.count; first += expanded) {
    const std::uint64_t count = std::min(expanded, piece.count - first);
    expand(grad + first * dtype_size(dtypes.grad), dtypes.grad, values, count);
    static_cast<void>(accumulate_gradient(acc + first * dtype_size(dtypes.acc), dtypes.acc, values,
                                          dtypes.rounded, count, piece.how));
  }
}

void sum_squares(const void* data, DType dtype, std::uint64_t count, double* leaf_sums) noexcept {
  HWY_DYNAMIC_DISPATCH(sum_squares_on_target)(data, dtype, count, leaf_sums);
}

}  // namespace artesian::kernels
#endif
