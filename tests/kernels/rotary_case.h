// Rows of heads with tables, for the tests of the kernels on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/rotary.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {

enum class Where : std::uint8_t { InPlace, Elsewhere };

struct RotaryCase {
  static constexpr std::uint64_t row_count = 7;
  static constexpr std::uint64_t length = 5;  // the last rows begin at 0 again
  static constexpr std::uint64_t heads = 3;

  RotaryCase(DType type, std::uint64_t half, std::uint64_t behind, Where place)
      : dtype(type),
        width(2 * half),
        stride(heads * width + behind),
        where(place),
        offset(half / 2 % 4) {
    source = array_of(mixed_values(row_count * stride, 41), dtype, offset);
    target = array_of(mixed_values(row_count * stride, 42), dtype, offset);
    cosines = array_of(ordinary_values(length * half, 43), dtype, offset);
    sines = array_of(mixed_values(length * half, 44), dtype, offset);
  }

  RotaryRows rows(unsigned char* from, unsigned char* to, const unsigned char* c,
                  const unsigned char* s) const {
    const std::uint64_t byte = offset * dtype_size(dtype);
    return {.source = from + byte,
            .target = (where == Where::InPlace ? from : to) + byte,
            .dtype = dtype,
            .rows = row_count,
            .stride = stride,
            .heads = heads,
            .width = width,
            .position = 4,
            .length = length,
            .cosines = c + byte,
            .sines = s + byte};
  }
  void run(decltype(turn_rows)* turn_all, Turn turn) {
    turn_all(rows(source.data(), target.data(), cosines.data(), sines.data()), turn);
  }
  void expect_equal(const RotaryCase& other) const {
    EXPECT_TRUE(same_arrays(source, other.source, dtype)) << dtype_name(dtype) << width;
    EXPECT_TRUE(same_arrays(target, other.target, dtype)) << dtype_name(dtype) << width;
  }

  DType dtype;
  std::uint64_t width;
  std::uint64_t stride;
  Where where;
  std::uint64_t offset;  // elements
  std::vector<unsigned char> source, target, cosines, sines;
};

/// Calls test(case, turn) for each dtype, width, place and way, until one fails.
template <typename Test>
void for_rotary_cases(const Test& test) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t half : counts) {
      for (const std::uint64_t behind : {0, 5, 8}) {
        const Turn turn = (half + behind) % 2 == 1 ? Turn::Back : Turn::Forward;
        test(RotaryCase(dtype, half, behind, Where::InPlace), turn);
        if (half < 200) test(RotaryCase(dtype, half, behind, Where::Elsewhere), turn);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace artesian::kernels
