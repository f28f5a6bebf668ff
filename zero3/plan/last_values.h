// LastValues: the last few values of a series. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace artesian::zero3 {

template <std::size_t count_max>
class LastValues {
 public:
  /// Adds a value, in place of the oldest if the series is full.
  void add(double value) { values_[count_++ % count_max] = value; }
  /// The values, in no particular order.
  std::span<const double> all() const { return {values_.data(), std::min(count_, count_max)}; }

 private:
  std::array<double, count_max> values_ = {};
  std::size_t count_ = 0;  // values added so far
};

}  // namespace artesian::zero3
