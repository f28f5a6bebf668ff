#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace artesian::tools {

/// Returns the median; for an even number of values the mean of the middle two, for none 0.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace artesian::tools
