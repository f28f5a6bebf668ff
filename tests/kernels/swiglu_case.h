// Rows of gates and ups, for the tests of the kernels on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/swiglu.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {

/// Says where gate and up lie: in arrays of their own, or beside each other in the rows of one.
enum class Gated : std::uint8_t { Apart, Packed };

struct SwigluCase {
  SwigluCase(DType type, std::uint64_t count, Gated how, bool finite, std::uint64_t rows_of_all = 3)
      : dtype(type),
        row_count(rows_of_all),
        width(count),
        packed(how == Gated::Packed),
        offset(count / 2 % 4) {
    const auto values = [&](std::uint64_t n, std::uint64_t stream) {
      return array_of(finite ? ordinary_values(n, stream) : mixed_values(n, stream), dtype, offset);
    };
    gate = values(row_count * stride(), 21);
    if (!packed) up = values(row_count * width, 22);
    outer = values(row_count * width, 23);
    product = values(row_count * width, 24);
    gate_gradient = values(row_count * stride(), 25);
    if (!packed) up_gradient = values(row_count * width, 26);
  }

  std::uint64_t stride() const { return packed ? 2 * width + 3 : width; }
  /// The arrays in which each of a call's pointers lies, and the element in it.
  GatedRows rows(const unsigned char* gates, const unsigned char* ups) const {
    return {.gate = gates + byte(0),
            .up = packed ? gates + byte(width) : ups + byte(0),
            .dtype = dtype,
            .rows = row_count,
            .width = width,
            .stride = stride()};
  }
  SwigluGradient gradient(const unsigned char* outers, unsigned char* gates,
                          unsigned char* ups) const {
    return {.outer = outers + byte(0),
            .gate = gates + byte(0),
            .up = packed ? gates + byte(width) : ups + byte(0)};
  }
  std::uint64_t byte(std::uint64_t element) const { return (offset + element) * dtype_size(dtype); }
  void run(decltype(swiglu)* forward, decltype(swiglu_gradient)* backward) {
    const GatedRows all = rows(gate.data(), up.data());
    forward(all, product.data() + byte(0));
    backward(all, gradient(outer.data(), gate_gradient.data(), up_gradient.data()));
  }
  void expect_equal(const SwigluCase& other) const {
    EXPECT_TRUE(same_arrays(product, other.product, dtype)) << dtype_name(dtype) << width;
    EXPECT_TRUE(same_arrays(gate_gradient, other.gate_gradient, dtype)) << width << packed;
    EXPECT_TRUE(same_arrays(up_gradient, other.up_gradient, dtype)) << width << packed;
  }

  DType dtype;
  std::uint64_t row_count;
  std::uint64_t width;
  bool packed;
  std::uint64_t offset;  // elements
  std::vector<unsigned char> gate, up, outer, product, gate_gradient, up_gradient;
};

/// Calls test(case) for each dtype, width, place and kind of values, until one fails.
template <typename Test>
void for_swiglu_cases(const Test& test) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t width : counts) {
      for (const Gated how : {Gated::Apart, Gated::Packed}) {
        for (const bool finite : {true, false}) {
          test(SwigluCase(dtype, width, how, finite));
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  test(SwigluCase(DType::BFloat16, 5, Gated::Packed, true, 4'099));  // more than a grid has
}

}  // namespace artesian::kernels
