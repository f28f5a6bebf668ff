// Proves that products by tiles equal those of the whole matrix, and that a tile fits a cache.
#include "zero3/torch/matrix_tiles.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

TEST(MatrixTiles, HaveWholeGroupsOfRows) {
  for (const std::int64_t width : {1, 3, 768, 4096, 20000, 1 << 24}) {
    EXPECT_GE(tile_rows(width), 64);
    EXPECT_EQ(tile_rows(width) % 64, 0);
  }
  EXPECT_LE(tile_rows(768) * 768, 4 << 20);
}

TEST(MatrixTiles, ProductsAreThoseOfTheWholeMatrix) {
  at::manual_seed(3);
  const std::int64_t width = 1024;
  const std::int64_t rows = 2 * tile_rows(width) + 100;
  const at::Tensor matrix = at::randn({rows, width}).to(at::kBFloat16);
  const at::Tensor whole = matrix.to(at::kFloat);
  const at::Tensor input = at::randn({5, width});
  const at::Tensor factor = at::randn({5, rows});
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a, b, 1e-4, 1e-3);
  };
  const at::Tensor columns = times_transposed(input, matrix);
  EXPECT_TRUE(near(columns, at::mm(input, whole.t())));
  EXPECT_TRUE(at::equal(columns, times_transposed(input, whole)));
  const at::Tensor bias = at::randn({rows});
  EXPECT_TRUE(near(times_transposed(input, matrix, bias), columns + bias));
  const at::Tensor sum = times(factor, matrix);
  EXPECT_TRUE(near(sum, at::mm(factor, whole)));
  EXPECT_TRUE(at::equal(sum, times(factor, whole)));
  at::Tensor gradient = at::empty({rows, width});
  std::int64_t parts = 0;
  each_part_of_gradient(factor, input, [&](std::int64_t first, const at::Tensor& part) {
    gradient.narrow(0, first, part.size(0)).copy_(part);
    ++parts;
  });
  EXPECT_EQ(parts, 3);
  EXPECT_TRUE(near(gradient, at::mm(factor.t(), input)));
}

}  // namespace
}  // namespace artesian::zero3
