// The clock for all measured times, and deadlines on it.
#pragma once

#include <cstdint>
#include <limits>

namespace artesian {

/// CLOCK_MONOTONIC: nanoseconds since an arbitrary start; never goes back.
std::uint64_t monotonic_ns() noexcept;

/// Seconds that have passed since `begin_ns` of monotonic_ns().
double seconds_since(std::uint64_t begin_ns) noexcept;

/// The latest time, on monotonic_ns(), until which a wait may last.
struct Deadline {
  std::uint64_t at_ns = std::numeric_limits<std::uint64_t>::max();

  /// A deadline `seconds` from now.
  static Deadline after_seconds(double seconds) noexcept;
};

}  // namespace artesian
