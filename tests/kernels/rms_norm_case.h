// Rows with a weight, for the tests of the norm's kernels on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/rms_norm.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {

struct RmsNormCase {
  RmsNormCase(DType type, std::uint64_t count, std::uint64_t row_count, bool finite)
      : dtype(type), width(count), rows(row_count), offset(count / 2 % 4) {
    const auto values = [&](std::uint64_t n, std::uint64_t stream) {
      return array_of(finite ? ordinary_values(n, stream) : mixed_values(n, stream), dtype, offset);
    };
    input = values(rows * width, 31);
    weight = values(width, 32);
    outer = values(rows * width, 33);
    output = values(rows * width, 34);
    input_gradient = values(rows * width, 35);
    inverses.assign(rows, -1.0f);
    sums.assign(groups_of(rows) * width, -1.0f);
    total.assign(groups_of(groups_of(rows)) * width, -1.0f);
  }

  std::uint64_t byte() const { return offset * dtype_size(dtype); }
  RmsNormRows given(const unsigned char* inputs, const unsigned char* weights) const {
    return {.input = inputs + byte(),
            .weight = weights + byte(),
            .dtype = dtype,
            .rows = rows,
            .width = width,
            .epsilon = 1e-5f};
  }
  void run(decltype(rms_norm)* forward, decltype(rms_norm_gradient)* backward,
           decltype(sum_groups)* add_up) {
    const RmsNormRows all = given(input.data(), weight.data());
    forward(all, output.data() + byte(), inverses.data());
    backward(all, {.inverses = inverses.data(),
                   .outer = outer.data() + byte(),
                   .input = input_gradient.data() + byte(),
                   .weight = sums.data()});
    add_up(sums.data(), groups_of(rows), width, total.data());
  }
  void expect_equal(const RmsNormCase& other) const {
    EXPECT_TRUE(same_arrays(output, other.output, dtype)) << dtype_name(dtype) << width;
    EXPECT_TRUE(same_arrays(input_gradient, other.input_gradient, dtype)) << width;
    expect_same(inverses, other.inverses);
    expect_same(sums, other.sums);
    expect_same(total, other.total);
  }

  DType dtype;
  std::uint64_t width;
  std::uint64_t rows;
  std::uint64_t offset;  // elements
  std::vector<unsigned char> input, weight, outer, output, input_gradient;
  std::vector<float> inverses, sums, total;

 private:
  void expect_same(const std::vector<float>& a, const std::vector<float>& b) const {
    for (std::uint64_t i = 0; i < a.size(); ++i) {
      if (same_value(a[i], b[i])) continue;
      ADD_FAILURE() << dtype_name(dtype) << " " << width << " " << i << ": " << a[i] << " " << b[i];
      return;
    }
  }
};

/// Calls test(case) for each dtype, width and kind of values, until one fails.
template <typename Test>
void for_rms_norm_cases(const Test& test) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t width : counts) {
      if (width == 0) continue;
      for (const bool finite : {true, false}) {
        const bool many = width == 9 && dtype == DType::BFloat16 && finite;  // groups of groups
        const std::uint64_t rows = many ? 64 * 64 + 1 : width > 100 ? 66 : 130;
        test(RmsNormCase(dtype, width, width == 7 ? 0 : rows, finite));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace artesian::kernels
