#include "zero3/step/weights.h"

#include <algorithm>

#include "base/random.h"

namespace artesian::zero3 {
namespace {

/// Zeroes the part of the row that lies in the slice `target`, which starts at element `first`.
void clear_row(const ParameterSpec& spec, std::uint64_t row, std::uint64_t first,
               std::span<float> target) {
  const std::uint64_t width = spec.numel() / static_cast<std::uint64_t>(spec.shape[0]);
  const std::uint64_t begin = std::max(row * width, first);
  const std::uint64_t end = std::min((row + 1) * width, first + target.size());
  for (std::uint64_t element = begin; element < end; ++element) target[element - first] = 0.0f;
}

}  // namespace

Result<void> RandomWeights::read(std::uint32_t parameter, std::uint64_t first,
                                 std::span<float> target) noexcept {
  ARTESIAN_CHECK(parameter < parameters_.size(), parameter, parameters_.size());
  const ParameterSpec& spec = parameters_[parameter];
  ARTESIAN_CHECK(first + target.size() <= spec.numel(), first, target.size(), spec.numel());
  if (spec.initial == Initial::Normal) {
    fill_normal(target, seed_, parameter, first);
    const auto deviation = static_cast<float>(spec.standard_deviation);
    for (float& value : target) value *= deviation;
    if (spec.zero_row.has_value()) clear_row(spec, *spec.zero_row, first, target);
  } else {
    std::fill(target.begin(), target.end(), spec.initial == Initial::Ones ? 1.0f : 0.0f);
  }
  return {};
}

}  // namespace artesian::zero3
