// Casts one element at a time: base/dtype.h in a loop.
#include <cmath>

#include "kernels/cast.h"
#include "kernels/element.h"

namespace artesian::kernels {

void expand_naive(const void* source, DType source_dtype, float* target,
                  std::uint64_t count) noexcept {
  for (std::uint64_t i = 0; i < count; ++i) {
    store_element(target, DType::Float32, i, load_element(source, source_dtype, i));
  }
}

bool narrow_naive(const float* source, void* target, DType target_dtype,
                  std::uint64_t count) noexcept {
  bool finite = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(round_element(source[i], target_dtype));
    store_element(target, target_dtype, i, source[i]);
  }
  return finite;
}

}  // namespace artesian::kernels
