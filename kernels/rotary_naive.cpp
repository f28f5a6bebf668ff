// Rotary position embeddings one pair at a time.
#include "kernels/element.h"
#include "kernels/rotary.h"

namespace artesian::kernels {
namespace {

void turn_head(const RotaryRows& all, Turn turn, std::uint64_t first, std::uint64_t position) {
  const std::uint64_t half = all.width / 2;
  const auto product = [&](float x, float y) { return round_element(x * y, all.dtype); };
  for (std::uint64_t i = 0; i < half; ++i) {
    const float a = load_element(all.source, all.dtype, first + i);
    const float b = load_element(all.source, all.dtype, first + half + i);
    const float c = load_element(all.cosines, all.dtype, position * half + i);
    const float s = load_element(all.sines, all.dtype, position * half + i);
    const bool forward = turn == Turn::Forward;
    const float low = forward ? product(a, c) - product(b, s) : product(a, c) + product(b, s);
    const float high = forward ? product(b, c) + product(a, s) : product(b, c) - product(a, s);
    store_element(all.target, all.dtype, first + i, low);
    store_element(all.target, all.dtype, first + half + i, high);
  }
}

}  // namespace

void turn_rows_naive(const RotaryRows& all, Turn turn) noexcept {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    const std::uint64_t position = (all.position + row) % all.length;
    for (std::uint64_t head = 0; head < all.heads; ++head) {
      turn_head(all, turn, row * all.stride + head * all.width, position);
    }
    for (std::uint64_t i = all.heads * all.width; i < all.stride; ++i) {
      const std::uint64_t at = row * all.stride + i;
      store_element(all.target, all.dtype, at, load_element(all.source, all.dtype, at));
    }
  }
}

}  // namespace artesian::kernels
