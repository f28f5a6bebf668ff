// Rows of logits with their targets, for the tests of the kernels on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cross_entropy.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {

struct CrossEntropyCase {
  static constexpr std::uint64_t row_count = 11;  // two blocks of the kernel on a GPU
  static constexpr float scale = 0.75f;

  CrossEntropyCase(DType type, std::uint64_t count, bool finite) : dtype(type), vocabulary(count) {
    const std::uint64_t elements = row_count * count;
    auto values = finite ? ordinary_values(elements, count) : mixed_values(elements, count);
    offset = count / 2 % 4;
    logits = array_of(values, dtype, offset);
    for (std::uint64_t row = 0; row < row_count; ++row) {
      targets.push_back(static_cast<std::int64_t>(random_word(test_seed(), 9, row) % count));
    }
    targets.back() = static_cast<std::int64_t>(count - 1);
    if (!finite) targets[3] = static_cast<std::int64_t>(count);  // outside
    if (!finite) targets[4] = -1;
    sums.assign(row_count, -1.0f);
    picked.assign(row_count, -1.0f);
  }

  CrossEntropyRows rows() {
    return {.logits = logits.data() + offset * dtype_size(dtype),
            .dtype = dtype,
            .rows = row_count,
            .vocabulary = vocabulary,
            .targets = targets.data(),
            .scale = scale,
            .sums = sums.data(),
            .picked = picked.data()};
  }
  float at(std::uint64_t row, std::uint64_t i) const {
    return load_element(logits.data(), dtype, offset + row * vocabulary + i);
  }
  void expect_equal(const CrossEntropyCase& other) const {
    EXPECT_TRUE(same_arrays(logits, other.logits, dtype)) << dtype_name(dtype) << " " << vocabulary;
    for (std::uint64_t row = 0; row < row_count; ++row) {
      EXPECT_TRUE(same_value(sums[row], other.sums[row])) << vocabulary << " " << row;
      EXPECT_TRUE(same_value(picked[row], other.picked[row])) << vocabulary << " " << row;
    }
  }

  DType dtype;
  std::uint64_t vocabulary;
  std::uint64_t offset = 0;  // elements
  std::vector<unsigned char> logits;
  std::vector<std::int64_t> targets;
  std::vector<float> sums;
  std::vector<float> picked;
};

}  // namespace artesian::kernels
