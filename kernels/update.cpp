// The rules with SIMD, like Adam in adam.cpp; see Note [Same bits] in simd_inl.h. Memory takes
// longer than arithmetic here, so dtypes and forms are tested inside of the loop: one loop per
// rule.
#include "kernels/update.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/update.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/simd_inl.h"
#include "kernels/split_inl.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

HWY_INLINE FloatVector load_of(DType dtype, const void* source, std::uint64_t i) {
  const FloatTag d;
  switch (dtype) {
    case DType::Float32: return hn::LoadU(d, static_cast<const float*>(source) + i);
    case DType::Float16:
      return load<DType::Float16>(d, static_cast<const std::uint16_t*>(source) + i);
    case DType::BFloat16: break;
  }
  return load<DType::BFloat16>(d, static_cast<const std::uint16_t*>(source) + i);
}

HWY_INLINE void store_of(DType dtype, FloatVector value, void* target, std::uint64_t i) {
  const FloatTag d;
  switch (dtype) {
    case DType::Float32: return hn::StoreU(value, d, static_cast<float*>(target) + i);
    case DType::Float16:
      return store<DType::Float16>(d, value, static_cast<std::uint16_t*>(target) + i);
    case DType::BFloat16: break;
  }
  store<DType::BFloat16>(d, value, static_cast<std::uint16_t*>(target) + i);
}

/// The new m and v, and the change of a weight in units of the learning rate.
template <Rule rule>
HWY_INLINE FloatVector step_of_vectors(const UpdateStep& step, bool has_average, FloatVector g,
                                       FloatVector& m, FloatVector& v) {
  const FloatTag d;
  const auto beta1 = hn::Set(d, step.constants.beta1);
  const auto beta2 = hn::Set(d, step.constants.beta2);
  const auto epsilon = hn::Set(d, step.constants.epsilon);
  if constexpr (rule == Rule::Sgd) {
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(hn::Set(d, step.grad_share), g));
    return step.nesterov ? hn::Add(g, hn::Mul(beta1, m)) : m;
  } else if constexpr (rule == Rule::Adagrad) {
    v = hn::Add(v, hn::Mul(g, g));
    return hn::Div(g, hn::Add(hn::Sqrt(v), epsilon));
  } else if constexpr (rule == Rule::RmsProp) {
    const auto rest = hn::Set(d, 1.0f - step.constants.beta2);
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(hn::Mul(rest, g), g));
    const auto u = hn::Div(g, hn::Add(hn::Sqrt(v), epsilon));
    if (!has_average) return u;
    m = hn::Add(hn::Mul(beta1, m), u);
    return m;
  } else if constexpr (rule == Rule::Lamb) {
    const auto first = hn::Set(d, 1.0f - step.constants.beta1);
    const auto rest = hn::Set(d, 1.0f - step.constants.beta2);
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(first, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(hn::Mul(rest, g), g));
    return hn::Div(m, hn::Add(hn::Sqrt(v), epsilon));
  } else if constexpr (rule == Rule::Muon) {
    return g;
  } else {
    static_assert(rule == Rule::Lion);
    const auto zero = hn::Zero(d);
    const auto sum =
        hn::Add(hn::Mul(beta1, m), hn::Mul(hn::Set(d, 1.0f - step.constants.beta1), g));
    m = hn::Add(hn::Mul(beta2, m), hn::Mul(hn::Set(d, 1.0f - step.constants.beta2), g));
    const auto up = hn::IfThenElseZero(hn::Gt(sum, zero), hn::Set(d, 1.0f));
    return hn::IfThenElse(hn::Lt(sum, zero), hn::Set(d, -1.0f), up);
  }
}

/// Updates `count` elements, a multiple of the vector length.
template <Rule rule>
HWY_NOINLINE void update_vectors(const AdamArrays& arrays, std::uint64_t count,
                                 const UpdateStep& step) {
  const FloatTag d;
  const AdamStep& c = step.constants;
  const bool split = arrays.master_low != nullptr;
  const bool out = !split && arrays.param_out != nullptr && arrays.param_out != arrays.param;
  const bool settles = !has_squares(rule) && arrays.param_out != arrays.param &&
                       arrays.param_out != nullptr && arrays.param_out_dtype == DType::BFloat16;
  const bool has_average = arrays.exp_avg != nullptr;
  auto* high = static_cast<std::uint16_t*>(arrays.param_out);  // for split master weights
  const auto grad_multiplier = hn::Set(d, c.grad_multiplier);
  const auto rate = hn::Set(d, c.learning_rate);
  constexpr bool decoupled = rule == Rule::Lion || rule == Rule::Muon;
  const auto decay = hn::Set(d, decoupled ? c.learning_rate * c.weight_decay : c.weight_decay);
  const std::size_t grad_size = dtype_size(arrays.grad_dtype);
  for (std::uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    if (split) {
      prefetch_beyond(arrays.master_low + i);
      prefetch_beyond(high + i);
    } else {
      prefetch_beyond(arrays.param + i);
    }
    if (has_average) prefetch_beyond(arrays.exp_avg + i);
    if constexpr (has_squares(rule)) prefetch_beyond(arrays.exp_avg_sq + i);
    prefetch_beyond(static_cast<const char*>(arrays.grad) + i * grad_size);
    auto m = has_average ? hn::LoadU(d, arrays.exp_avg + i) : hn::Zero(d);
    auto v = hn::Zero(d);
    if constexpr (has_squares(rule)) v = hn::LoadU(d, arrays.exp_avg_sq + i);
    auto p =
        split ? join_split(high + i, arrays.master_low + i, v) : hn::LoadU(d, arrays.param + i);
    auto g = hn::Mul(load_of(arrays.grad_dtype, arrays.grad, i), grad_multiplier);
    constexpr bool decays_grad = !decoupled && rule != Rule::Lamb;
    if constexpr (decays_grad) g = hn::Add(g, hn::Mul(decay, p));
    auto u = step_of_vectors<rule>(step, has_average, g, m, v);
    if constexpr (rule == Rule::Lamb) u = hn::Add(u, hn::Mul(decay, p));
    if constexpr (decoupled) p = hn::Sub(p, hn::Mul(decay, p));
    p = hn::Sub(p, hn::Mul(rate, u));
    if (settles) p = settle_ties(p);
    if (has_average) hn::StoreU(m, d, arrays.exp_avg + i);
    if constexpr (has_squares(rule)) {
      if (split) {
        store_split(p, v, high + i, arrays.master_low + i, arrays.exp_avg_sq + i);
        continue;
      }
      hn::StoreU(v, d, arrays.exp_avg_sq + i);
    } else if (split) {
      store_settled(p, high + i, arrays.master_low + i);
      continue;
    }
    hn::StoreU(p, d, arrays.param + i);
    if (out) store_of(arrays.param_out_dtype, p, arrays.param_out, i);
  }
}

/// A tail shorter than a vector, whose arrays are copied to padded ones and back.
class Tail {
 public:
  static constexpr std::size_t lanes = hn::MaxLanes(FloatTag());

  Tail(const AdamArrays& arrays, std::uint64_t first, std::uint64_t rest)
      : given_(arrays), first_(first), rest_(rest), padded_(arrays) {
    padded_.param = copy(given_.param, param_);
    padded_.exp_avg = copy(given_.exp_avg, exp_avg_);
    padded_.exp_avg_sq = copy(given_.exp_avg_sq, exp_avg_sq_);
    padded_.master_low = copy(given_.master_low, low_);
    padded_.grad = copy_bytes(given_.grad, dtype_size(given_.grad_dtype), grad_);
    const bool apart = given_.param_out != given_.param;
    padded_.param_out = apart ? copy_bytes(given_.param_out, out_size(), out_) : padded_.param;
  }

  const AdamArrays& arrays() const { return padded_; }

  void copy_back() const {
    back(given_.param, param_);
    back(given_.exp_avg, exp_avg_);
    back(given_.exp_avg_sq, exp_avg_sq_);
    back(given_.master_low, low_);
    if (given_.param_out == nullptr || given_.param_out == given_.param) return;
    std::memcpy(static_cast<char*>(given_.param_out) + first_ * out_size(), out_,
                rest_ * out_size());
  }

 private:
  std::size_t out_size() const { return dtype_size(given_.param_out_dtype); }
  template <typename T>
  T* copy(const T* from, T* to) const {
    if (from == nullptr) return nullptr;
    std::memcpy(to, from + first_, rest_ * sizeof(T));
    return to;
  }
  void* copy_bytes(const void* from, std::size_t size, float* to) const {
    if (from == nullptr) return nullptr;
    std::memcpy(to, static_cast<const char*>(from) + first_ * size, rest_ * size);
    return to;
  }
  template <typename T>
  void back(T* to, const T* from) const {
    if (to != nullptr) std::memcpy(to + first_, from, rest_ * sizeof(T));
  }

  const AdamArrays& given_;
  const std::uint64_t first_;
  const std::uint64_t rest_;
  AdamArrays padded_;
  float param_[lanes] = {}, exp_avg_[lanes] = {}, exp_avg_sq_[lanes] = {};
  float grad_[lanes] = {}, out_[lanes] = {};  // of any dtype
  std::uint16_t low_[lanes] = {};
};

/// Requires that `count` is a multiple of the vector length.
HWY_NOINLINE void direction_vectors(const AdamArrays& arrays, std::uint64_t count,
                                    const UpdateStep& step, float* weights, float* directions) {
  const FloatTag d;
  const AdamStep& c = step.constants;
  const auto* high = static_cast<const std::uint16_t*>(arrays.param_out);
  const auto grad_multiplier = hn::Set(d, c.grad_multiplier);
  const auto decay = hn::Set(d, c.weight_decay);
  for (std::uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    auto m = hn::LoadU(d, arrays.exp_avg + i);
    auto v = hn::LoadU(d, arrays.exp_avg_sq + i);
    const auto p = arrays.master_low != nullptr ? join_split(high + i, arrays.master_low + i, v)
                                                : hn::LoadU(d, arrays.param + i);
    const auto g = hn::Mul(load_of(arrays.grad_dtype, arrays.grad, i), grad_multiplier);
    const auto u = step_of_vectors<Rule::Lamb>(step, true, g, m, v);
    hn::StoreU(p, d, weights + i);
    hn::StoreU(hn::Add(u, hn::Mul(decay, p)), d, directions + i);
  }
}

HWY_NOINLINE void momentum_vectors(const void* grad, DType dtype, std::uint64_t count,
                                   const UpdateStep& step, float* average, float* direction) {
  const FloatTag d;
  const AdamStep& c = step.constants;
  const auto beta = hn::Set(d, c.beta1);
  const auto rest = hn::Set(d, 1.0f - c.beta1);
  const auto grad_multiplier = hn::Set(d, c.grad_multiplier);
  for (std::uint64_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto g = hn::Mul(load_of(dtype, grad, i), grad_multiplier);
    auto m = hn::LoadU(d, average + i);
    m = hn::Add(m, hn::Mul(rest, hn::Sub(g, m)));
    hn::StoreU(m, d, average + i);
    hn::StoreU(step.nesterov ? hn::Add(g, hn::Mul(beta, hn::Sub(m, g))) : m, d, direction + i);
  }
}

void momentum_on_target(const void* grad, DType dtype, std::uint64_t count, const UpdateStep& step,
                        float* average, float* direction) {
  constexpr std::uint64_t lanes = Tail::lanes;
  const std::uint64_t full = count - count % lanes;
  momentum_vectors(grad, dtype, full, step, average, direction);
  if (full == count) return;
  const std::size_t rest = (count - full) * sizeof(float);
  float last_grad[lanes] = {}, last_average[lanes] = {}, last_direction[lanes];
  std::memcpy(last_grad, static_cast<const char*>(grad) + full * dtype_size(dtype),
              (count - full) * dtype_size(dtype));
  std::memcpy(last_average, average + full, rest);
  momentum_vectors(last_grad, dtype, lanes, step, last_average, last_direction);
  std::memcpy(average + full, last_average, rest);
  std::memcpy(direction + full, last_direction, rest);
}

void direction_on_target(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step,
                         float* weights, float* directions) {
  const std::uint64_t full = count - count % Tail::lanes;
  direction_vectors(arrays, full, step, weights, directions);
  if (full == count) return;
  const Tail tail(arrays, full, count - full);
  float last_weights[Tail::lanes], last_directions[Tail::lanes];
  direction_vectors(tail.arrays(), Tail::lanes, step, last_weights, last_directions);
  std::memcpy(weights + full, last_weights, (count - full) * sizeof(float));
  std::memcpy(directions + full, last_directions, (count - full) * sizeof(float));
}

template <Rule rule>
void update_any(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) {
  const std::uint64_t full = count - count % Tail::lanes;
  update_vectors<rule>(arrays, full, step);
  if (full == count) return;
  Tail tail(arrays, full, count - full);
  update_vectors<rule>(tail.arrays(), Tail::lanes, step);
  tail.copy_back();
}

void update_on_target(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) {
  switch (step.rule) {
    case Rule::Sgd: return update_any<Rule::Sgd>(arrays, count, step);
    case Rule::Adagrad: return update_any<Rule::Adagrad>(arrays, count, step);
    case Rule::RmsProp: return update_any<Rule::RmsProp>(arrays, count, step);
    case Rule::Lion: return update_any<Rule::Lion>(arrays, count, step);
    case Rule::Lamb: return update_any<Rule::Lamb>(arrays, count, step);
    case Rule::Muon: return update_any<Rule::Muon>(arrays, count, step);
    case Rule::Adam: return;  // done by adam_step()
  }
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace artesian::kernels {
namespace {

HWY_EXPORT(update_on_target);
HWY_EXPORT(direction_on_target);
HWY_EXPORT(momentum_on_target);

}  // namespace

void update(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step) noexcept {
  if (step.rule == Rule::Adam) return adam_step(arrays, count, step.constants);
  ARTESIAN_CHECK(count == 0 || has_squares(step.rule) == (arrays.exp_avg_sq != nullptr));
  HWY_DYNAMIC_DISPATCH(update_on_target)(arrays, count, step);
}

void muon_direction(const void* grad, DType grad_dtype, std::uint64_t count, const UpdateStep& step,
                    float* average, float* direction) noexcept {
  HWY_DYNAMIC_DISPATCH(momentum_on_target)(grad, grad_dtype, count, step, average, direction);
}

void lamb_direction(const AdamArrays& arrays, std::uint64_t count, const UpdateStep& step,
                    float* weights, float* directions) noexcept {
  ARTESIAN_CHECK(step.rule == Rule::Lamb && (count == 0 || arrays.exp_avg_sq != nullptr));
  HWY_DYNAMIC_DISPATCH(direction_on_target)(arrays, count, step, weights, directions);
}

}  // namespace artesian::kernels
#endif
