// silu(gate) * up one element at a time.
#include "kernels/element.h"
#include "kernels/exponential.h"
#include "kernels/swiglu.h"

namespace artesian::kernels {
namespace {

/// Calls body(index in gate and up, index in contiguous arrays) for each element.
template <typename Body>
void for_each(const GatedRows& all, const Body& body) {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    for (std::uint64_t i = 0; i < all.width; ++i) body(row * all.stride + i, row * all.width + i);
  }
}

}  // namespace

void swiglu_naive(const GatedRows& all, void* product) noexcept {
  for_each(all, [&](std::uint64_t from, std::uint64_t to) {
    const float gate = load_element(all.gate, all.dtype, from);
    const float silu = round_element(gate * sigmoid(gate), all.dtype);
    store_element(product, all.dtype, to, silu * load_element(all.up, all.dtype, from));
  });
}

void swiglu_gradient_naive(const GatedRows& all, const SwigluGradient& gradient) noexcept {
  for_each(all, [&](std::uint64_t at, std::uint64_t dense) {
    const float gate = load_element(all.gate, all.dtype, at);
    const float up = load_element(all.up, all.dtype, at);
    const float outer = load_element(gradient.outer, all.dtype, dense);
    const float q = sigmoid(gate);
    store_element(gradient.up, all.dtype, at, outer * round_element(gate * q, all.dtype));
    const float inner = round_element(outer * up, all.dtype);
    store_element(gradient.gate, all.dtype, at, (inner * q) * (1.0f + gate * (1.0f - q)));
  });
}

}  // namespace artesian::kernels
