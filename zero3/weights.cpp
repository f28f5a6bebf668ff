#include "zero3/weights.h"

#include <algorithm>

#include "base/random.h"

namespace artesian::zero3 {

Result<void> RandomWeights::read(std::uint32_t parameter, std::uint64_t first,
                                 std::span<float> target) noexcept {
  ARTESIAN_CHECK(parameter < parameters_.size(), parameter, parameters_.size());
  const ParameterSpec& spec = parameters_[parameter];
  if (spec.initial == Initial::Normal) {
    fill_normal(target, seed_, parameter, first);
    const auto deviation = static_cast<float>(spec.standard_deviation);
    for (float& value : target) value *= deviation;
  } else {
    std::fill(target.begin(), target.end(), spec.initial == Initial::Ones ? 1.0f : 0.0f);
  }
  return {};
}

}  // namespace artesian::zero3
