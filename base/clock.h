// The clock that all times are measured with, and deadlines on it.
#pragma once

#include <cstdint>
#include <limits>

namespace artesian {

/// CLOCK_MONOTONIC: nanoseconds since an arbitrary start; never goes back.
std::uint64_t monotonic_ns() noexcept;

/// Seconds that have passed since `begin_ns` of monotonic_ns().
double seconds_since(std::uint64_t begin_ns) noexcept;

/// The latest moment that a wait may last until, by monotonic_ns().
struct Deadline {
  std::uint64_t at_ns = std::numeric_limits<std::uint64_t>::max();

  /// A deadline `seconds` from now.
  static Deadline after_seconds(double seconds) noexcept;
};

}  // namespace artesian
