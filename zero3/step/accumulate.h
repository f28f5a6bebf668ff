// Adds a gradient's elements to their accumulator, for all pairs of dtypes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/gradient.h"

namespace artesian::zero3 {

/// Target of a sum of gradients: elements are rounded to `rounded`, then added in `stored`.
struct Accumulator {
  std::byte* target = nullptr;  // address of the first element
  DType stored = DType::Float32;
  DType rounded = DType::Float32;
  kernels::Accumulate how = kernels::Accumulate::Add;
};

/// Adds elements [begin, end) of `data`, in host memory, by kernels::accumulate_gradient. Elements
/// that are not finite stay so, and computing the norm finds their parameter. Thread: any, for
/// disjoint slices. Shape: data: of `dtype`, fp32 or rounded already, from the accumulator's first
/// element on.
inline void accumulate(const Accumulator& to, const std::byte* data, DType dtype,
                       std::uint64_t begin, std::uint64_t end) noexcept {
  constexpr std::uint64_t expanded =
      2048;  // elements converted to fp32 at a time: 8 KiB on the stack
  const auto add = [&](std::uint64_t first, const float* values, std::uint64_t count) {
    static_cast<void>(kernels::accumulate_gradient(to.target + first * dtype_size(to.stored),
                                                   to.stored, values, to.rounded, count, to.how));
  };
  if (dtype == DType::Float32) {
    add(begin, reinterpret_cast<const float*>(data) + begin, end - begin);
    return;
  }
  float values[expanded];
  for (std::uint64_t first = begin; first < end; first += expanded) {
    const std::uint64_t count = std::min(expanded, end - first);
    kernels::expand(data + first * dtype_size(dtype), dtype, values, count);
    add(first, values, count);
  }
}

}  // namespace artesian::zero3
