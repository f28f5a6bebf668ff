// Latencies in constant memory: buckets of equal width within each power of two, so that any
// percentile is right to about 3%.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/check.h"

namespace artesian::aio {

class LatencyHistogram {
 public:
  void add(std::uint64_t latency_ns) noexcept {
    ++counts_[bucket_of(latency_ns)];
    ++count_;
  }

  /// Returns the latency in ns below which `percent` of all latencies lie; 0 if there are none.
  std::uint64_t percentile_ns(double percent) const noexcept {
    ARTESIAN_CHECK(percent >= 0.0 && percent <= 100.0, percent);
    const double wanted = static_cast<double>(count_) * percent / 100.0;
    std::uint64_t seen = 0;
    for (std::uint64_t bucket = 0; bucket < counts_.size(); ++bucket) {
      seen += counts_[bucket];
      if (counts_[bucket] != 0 && static_cast<double>(seen) >= wanted) return middle_of(bucket);
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t steps = 16;  // buckets per power of two
  static constexpr std::uint64_t step_bits = 4;

  static std::uint64_t bucket_of(std::uint64_t value) noexcept {
    if (value < steps) return value;
    const auto shift = static_cast<std::uint64_t>(std::bit_width(value)) - step_bits - 1;
    return (shift + 1) * steps + ((value >> shift) - steps);
  }
  static std::uint64_t middle_of(std::uint64_t bucket) noexcept {
    if (bucket < steps) return bucket;
    const std::uint64_t shift = bucket / steps - 1;
    const std::uint64_t begin = (steps + bucket % steps) << shift;
    return begin + ((std::uint64_t{1} << shift) >> 1);
  }

  std::array<std::uint64_t, (64 - step_bits + 1) * steps> counts_{};
  std::uint64_t count_ = 0;
};

}  // namespace artesian::aio
