// A large matrix, processed in tiles of rows that stay in cache. A matrix stored in 16 bit is
// expanded tile by tile to fp32, so that it never exists completely in fp32.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>

namespace artesian::zero3 {

/// Rows of a tile of a matrix of this width.
std::int64_t tile_rows(std::int64_t width) noexcept;

/// Tiles in `dtype`: each is a view, or lies in a buffer that the next tile reuses.
class MatrixTiles {
 public:
  /// matrix: [rows, width].
  MatrixTiles(const at::Tensor& matrix, at::ScalarType dtype);

  /// Calls `use(first row, tile)` for each tile in order.
  template <typename Use>
  void each(const Use& use) const {
    for (std::int64_t first = 0; first < matrix_.size(0); first += rows_) {
      use(first, tile_at(first, std::min(rows_, matrix_.size(0) - first)));
    }
  }

 private:
  at::Tensor tile_at(std::int64_t first, std::int64_t count) const;

  at::Tensor matrix_;
  std::int64_t rows_;
  at::Tensor buffer_;
};

/// Returns input matrix^T + bias, computed tile by tile, in fp32. Shape: input: [n, width], fp32;
/// matrix: [rows, width]; bias: [rows], fp32, or undefined: none. Returns [n, rows].
at::Tensor times_transposed(const at::Tensor& input, const at::Tensor& matrix,
                            const at::Tensor& bias = {});
/// Returns factor matrix, computed tile by tile, in fp32: a tile's products are added to the sum
/// over earlier tiles. Shape: factor: [n, rows], fp32; matrix: [rows, width]. Returns [n, width].
at::Tensor times(const at::Tensor& factor, const at::Tensor& matrix);

/// Calls `use(first row, part)` for the parts of factor^T input, a matrix's gradient, each with as
/// many rows as a tile of the matrix; each lies in a buffer that the next part reuses. Shape:
/// factor: [n, rows]; input: [n, width], of the same dtype; part: [count, width].
template <typename Use>
void each_part_of_gradient(const at::Tensor& factor, const at::Tensor& input, const Use& use) {
  const std::int64_t all = factor.size(1);
  const std::int64_t rows = std::min(tile_rows(input.size(1)), all);
  const at::Tensor buffer = at::empty({rows, input.size(1)}, input.options().requires_grad(false));
  for (std::int64_t first = 0; first < all; first += rows) {
    const std::int64_t count = std::min(rows, all - first);
    at::Tensor part = buffer.narrow(0, 0, count);
    at::mm_out(part, factor.narrow(1, first, count).t(), input);
    use(first, part);
  }
}

}  // namespace artesian::zero3
