#include "zero3/torch/newton_schulz.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "zero3/torch/from_torch.h"

namespace artesian::zero3 {
namespace {

constexpr int iterations = 5;
constexpr int restart = 2;  // for gram: restarts before rounding errors grow
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

/// Allocates tensors in the workspace, one after the other.
class Workspace {
 public:
  Workspace(std::span<std::byte> bytes, at::ScalarType type) : bytes_(bytes), type_(type) {}
  at::Tensor matrix(std::int64_t rows, std::int64_t columns) {
    const auto size = static_cast<std::size_t>(rows * columns) * at::elementSize(type_);
    ARTESIAN_CHECK(used_ + size <= bytes_.size(), used_, size, bytes_.size());
    std::byte* const at = bytes_.data() + std::exchange(used_, used_ + size);
    return at::from_blob(at, {rows, columns}, at::TensorOptions(type_));
  }

 private:
  std::span<std::byte> bytes_;
  std::size_t used_ = 0;
  at::ScalarType type_;
};

/// x = a x + (b A + c A A) x with A = x x', five times.
void iterate(at::Tensor& x, at::Tensor& other, std::array<at::Tensor, 4>& small) {
  auto& [gram, quintic, unused, none] = small;
  for (int step = 0; step < iterations; ++step) {
    at::mm_out(gram, x, x.t());
    at::addmm_out(quintic, gram, gram, gram, b, c);
    at::addmm_out(other, x, quintic, x, a, 1.0);
    std::swap(x, other);
  }
}

/// The same with products of [n, n] matrices only, except for two with x.
void iterate_gram(at::Tensor& x, at::Tensor& other, std::array<at::Tensor, 4>& small) {
  auto& [gram, z, q, spare] = small;
  at::mm_out(gram, x, x.t());
  bool begun = false;
  for (int step = 0; step < iterations; ++step) {
    if (step == restart) {
      at::mm_out(other, q, x);
      std::swap(x, other);
      at::mm_out(gram, x, x.t());
      begun = false;
    }
    at::addmm_out(z, gram, gram, gram, b, c);
    if (begun) {
      at::addmm_out(spare, q, z, q, a, 1.0);
      std::swap(q, spare);
    } else {
      q.copy_(z);
      q.diagonal().add_(a);
      begun = true;
    }
    if (step + 1 == iterations || step + 1 == restart) continue;
    at::addmm_out(spare, gram, z, gram, a, 1.0);
    at::addmm_out(gram, spare, z, spare, a, 1.0);
  }
  at::mm_out(other, q, x);
  std::swap(x, other);
}

}  // namespace

Result<void> newton_schulz(const MatrixUpdate& update) noexcept {
  return from_torch([&]() -> Result<void> {
    const at::NoGradGuard no_grad;
    // Disables the callback that updates between operators.
    const at::DisableRecordFunctionGuard unseen;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto rows = static_cast<std::int64_t>(update.rows);
    const auto columns = static_cast<std::int64_t>(update.columns);
    const at::Tensor given = at::from_blob(update.values, {rows, columns}, at::kFloat);
    const at::Tensor wide = rows > columns ? given.t() : given;
    const std::int64_t n = std::min(rows, columns);
    const std::int64_t m = std::max(rows, columns);
    const bool gram = update.method == NewtonSchulz::Gram;
    Workspace workspace(update.workspace, gram ? at::kFloat : at::kBFloat16);
    at::Tensor x = workspace.matrix(n, m);
    at::Tensor other = workspace.matrix(n, m);
    std::array<at::Tensor, 4> small;
    for (at::Tensor& each : small) each = workspace.matrix(n, n);
    x.copy_(wide);
    x.div_(x.norm().add_(1e-7));
    if (gram && n < m) {
      iterate_gram(x, other, small);
    } else {
      iterate(x, other, small);
    }
    wide.copy_(x);
    return {};
  });
}

}  // namespace artesian::zero3
