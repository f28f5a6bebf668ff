// Adds a gradient's elements to their accumulator, for all pairs of dtypes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gradient.h"

namespace artesian::zero3 {

/// Target of a sum of gradients: elements are rounded to `rounded`, then added in `stored`.
struct Accumulator {
  std::byte* target = nullptr;  // address of the first element
  DType stored = DType::Float32;
  DType rounded = DType::Float32;
  kernels::Accumulate how = kernels::Accumulate::Add;
};

/// Adds elements [begin, end) of `data`, in host memory. Elements that are not finite stay so, and
/// computing the norm finds their parameter. Thread: any, for disjoint slices. Shape: data: of
/// `dtype`, fp32 or rounded already, from the accumulator's first element on.
inline void accumulate(const Accumulator& to, const std::byte* data, DType dtype,
                       std::uint64_t begin, std::uint64_t end) noexcept {
  kernels::accumulate_piece({.acc = to.target + begin * dtype_size(to.stored),
                             .grad = data + begin * dtype_size(dtype),
                             .count = end - begin,
                             .how = to.how},
                            {.acc = to.stored, .grad = dtype, .rounded = to.rounded});
}

}  // namespace artesian::zero3
