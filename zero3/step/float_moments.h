// FloatMoments: the moments of a few elements of a sub-group as fp32, to be worked on. Moments
// stored as fp32 are used in place; moments stored as bf16 are copied, and store() rounds them back
// to nearest. The sign of squares is kept, as it may be a weight's tie bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cast.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {

class FloatMoments {
 public:
  /// For elements [begin, begin + count) of `group`, which must outlive it.
  FloatMoments(const SubGroup& group, std::uint64_t begin, std::uint64_t count)
      : count_(static_cast<std::size_t>(count)),
        average_(make(group.exp_avg, group.half_avg, begin)),
        squares_(make(group.exp_avg_sq, group.half_avg_sq, begin)) {}

  /// [count]; empty if the optimizer has no average.
  std::span<float> average() const noexcept { return average_.values; }
  std::span<float> squares() const noexcept { return squares_.values; }
  /// The element of an array, or null.
  static float* at(std::span<float> array, std::uint64_t element) noexcept {
    return array.empty() ? nullptr : array.data() + element;
  }

  void store() const noexcept {
    for (const Moment* each : {&average_, &squares_}) {
      if (each->stored == nullptr) continue;
      static_cast<void>(
          kernels::narrow(each->values.data(), each->stored, DType::BFloat16, count_));
    }
  }

 private:
  struct Moment {
    std::unique_ptr<float[]> memory;
    std::uint16_t* stored = nullptr;
    std::span<float> values;
  };

  Moment make(float* whole, std::uint16_t* half, std::uint64_t begin) const {
    Moment moment;
    if (whole != nullptr) moment.values = {whole + begin, count_};
    if (half == nullptr) return moment;
    moment.memory = std::make_unique_for_overwrite<float[]>(count_);
    moment.values = {moment.memory.get(), count_};
    moment.stored = half + begin;
    kernels::expand(moment.stored, DType::BFloat16, moment.memory.get(), count_);
    return moment;
  }

  const std::size_t count_;
  const Moment average_;
  const Moment squares_;
};

}  // namespace artesian::zero3
