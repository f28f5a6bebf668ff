#include "zero3/torch/matrix_tiles.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/zeros.h>

namespace artesian::zero3 {
namespace {

constexpr std::int64_t elements_per_tile = 4 << 20;  // 16 MiB in fp32: fits in the last-level cache

}  // namespace

std::int64_t tile_rows(std::int64_t width) noexcept {
  return std::max<std::int64_t>(64, elements_per_tile / width / 64 * 64);
}

MatrixTiles::MatrixTiles(const at::Tensor& matrix, at::ScalarType dtype)
    : matrix_(matrix.detach()), rows_(tile_rows(matrix.size(1))) {
  if (matrix.scalar_type() == dtype) return;
  const std::int64_t rows = std::min(rows_, matrix.size(0));
  buffer_ = at::empty({rows, matrix.size(1)}, matrix.options().dtype(dtype).requires_grad(false));
}

at::Tensor MatrixTiles::tile_at(std::int64_t first, std::int64_t count) const {
  const at::Tensor tile = matrix_.narrow(0, first, count);
  return buffer_.defined() ? buffer_.narrow(0, 0, count).copy_(tile) : tile;
}

at::Tensor times_transposed(const at::Tensor& input, const at::Tensor& matrix,
                            const at::Tensor& bias) {
  at::Tensor product =
      at::empty({input.size(0), matrix.size(0)}, input.options().requires_grad(false));
  MatrixTiles(matrix, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
    at::Tensor columns = product.narrow(1, first, tile.size(0));
    if (bias.defined()) {
      at::addmm_out(columns, bias.narrow(0, first, tile.size(0)), input, tile.t());
    } else {
      at::mm_out(columns, input, tile.t());
    }
  });
  return product;
}

at::Tensor times(const at::Tensor& factor, const at::Tensor& matrix) {
  at::Tensor sum =
      at::zeros({factor.size(0), matrix.size(1)}, factor.options().requires_grad(false));
  MatrixTiles(matrix, at::kFloat).each([&](std::int64_t first, const at::Tensor& tile) {
    sum.addmm_(factor.narrow(1, first, tile.size(0)), tile);
  });
  return sum;
}

}  // namespace artesian::zero3
